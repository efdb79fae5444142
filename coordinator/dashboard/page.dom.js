// Elements, tables and charts. All text enters as text, never as markup.

import { TERMS, count, number } from "./page.text.js";

export const at = (id) => document.getElementById(id);

export function element(name, content, attributes = {}) {
  const node = document.createElement(name);
  node.append(...[content].flat().filter((part) => part !== undefined && part !== null));
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export const link = (text, href) => element("a", text, { href });
export const note = (text, attributes) => element("p", text, { class: "note", ...attributes });
export const code = (text) => element("code", text);

export function section(id, title, ...content) {
  return element("section", [title ? element("h2", title, { id: `${id}-title` }) : null, ...content],
    { id: `${id}-part`, ...(title ? { "aria-labelledby": `${id}-title` } : {}) });
}

// A term that TERMS explains shows its meaning on hover; the list at the end of the page shows it to everybody.
export function term(name, text = name) {
  return TERMS[name] ? element("abbr", text, { title: TERMS[name] }) : text;
}

// Columns are { name, head, few, text }: `few` stays on a narrow screen, `text` is not a number. Cells are text or nodes.
export function table(id, caption, columns, rows) {
  const cell = (name, content, column, attributes = {}) =>
    element(name, content, { class: [column.few ? "" : "more", column.text ? "text" : ""].join(" ").trim(), ...attributes });
  const head = element("tr", columns.map((c) => cell("th", term(c.name, c.head), c, { scope: "col" })));
  const body = rows.map((cells) => element("tr", cells.map((content, i) =>
    (i === 0 ? cell("th", content, columns[i], { scope: "row" }) : cell("td", content, columns[i])))));
  const node = element("table", [element("caption", caption, { class: "unseen" }), element("thead", head), element("tbody", body)], { id });
  return element("div", node, { class: "wide", tabindex: "0", role: "region", "aria-label": caption });
}

export function facts(pairs) {
  return element("dl", pairs.map(([value, name, detail]) =>
    element("div", [element("dt", name), element("dd", [value instanceof Node ? value : element("b", value), detail ? element("span", detail) : null])], { class: "fact" })),
  { class: "facts" });
}

// Replace the sections of `target` that changed, and leave the reader's focus, scrolling and open parts alone.
export function render(target, sections) {
  const old = new Map([...target.children].map((node) => [node.id, node]));
  const active = document.activeElement, href = active && active.getAttribute("href");
  const place = active && active !== document.body ? active.id || active.getAttribute("aria-label") : null;
  const nodes = sections.map((node) => {
    const before = old.get(node.id);
    if (!before) return node;
    for (const part of node.querySelectorAll("details")) {
      const shown = before.querySelector(`#${part.id}`);
      if (shown && shown.open) part.open = true;
    }
    return before.isEqualNode(node) ? before : node;
  });
  const scrolled = new Map([...target.querySelectorAll(".wide")].map((node) => [node.getAttribute("aria-label"), node.scrollLeft]));
  const isSame = nodes.length === target.children.length && nodes.every((node, i) => node === target.children[i]);
  if (isSame) return;
  target.replaceChildren(...nodes);
  for (const node of target.querySelectorAll(".wide")) node.scrollLeft = scrolled.get(node.getAttribute("aria-label")) || 0;
  if (document.activeElement !== active) {
    const again = [...target.querySelectorAll("a, button, select, summary, [tabindex]")].find((node) =>
      (href ? node.getAttribute("href") === href : place && (node.id === place || node.getAttribute("aria-label") === place)));
    if (again) again.focus({ preventScroll: true });
  }
}

function svgElement(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Round numbers between two values, five or so.
export function ticks(low, high) {
  const rough = Math.max(high - low, 1e-9) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((width) => width >= rough);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: Math.max(last - first, 1) + 1 }, (_, i) => (first + i) * step);
}

// Lines are { name, style, points: [[round, value], ...] }; the vertical axis does not begin at zero. Lines of the style
// "faint" stand behind the others: without dots, and without a name of their own in the legend.
export function chart(name, unit, lines) {
  const points = lines.flatMap((line) => line.points), named = lines.filter((line) => line.style !== "faint"), faint = lines.length - named.length;
  const [width, height, left, right, top, bottom] = [window.innerWidth < 640 ? 370 : 640, 250, 52, 14, 12, 40];
  const first = Math.min(...points.map(([round]) => round)), last = Math.max(first + 1, ...points.map(([round]) => round));
  const values = points.map(([, value]) => value), levels = ticks(Math.min(...values), Math.max(...values));
  const x = (round) => left + ((width - left - right) * (round - first)) / (last - first);
  const y = (value) => height - bottom - ((height - top - bottom) * (value - levels[0])) / (levels.at(-1) - levels[0]);
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name} by round: ${named.map((line) =>
    `${line.name} ${number(line.points[0][1])} in round ${line.points[0][0]}, ${number(line.points.at(-1)[1])} in round ${line.points.at(-1)[0]}`).join("; ")}` });
  const digits = [0, 1, 2, 3, 4, 5].find((d) => levels.every((level) => Math.abs(level - level.toFixed(d)) < 1e-9)) ?? 6;
  for (const level of levels) {
    svg.append(svgElement("line", { class: "grid", x1: left, x2: width - right, y1: y(level), y2: y(level) }),
      svgElement("text", { x: left - 7, y: y(level) + 4, "text-anchor": "end" }, level.toFixed(digits)));
  }
  const every = ticks(0, Math.max(4, last - first))[1];
  for (let round = first; round <= last; round += 1) {
    if (last - first > 8 && round % Math.ceil(every) !== 0) continue;
    svg.append(svgElement("text", { x: x(round), y: height - bottom + 17, "text-anchor": "middle" }, round));
  }
  svg.append(svgElement("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "round"),
    svgElement("text", { x: -(height - bottom + top) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle" }, unit));
  for (const line of lines) {
    svg.append(svgElement("path", { class: line.style, d: `M${line.points.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join("L")}` }));
    for (const [round, value] of line.style === "faint" ? [] : line.points) {
      const dot = svgElement("circle", { class: line.style, cx: x(round).toFixed(1), cy: y(value).toFixed(1), r: points.length > 120 ? 1.5 : 3 });
      dot.append(svgElement("title", {}, `round ${round}: ${line.name} ${number(value)}`));
      svg.append(dot);
    }
  }
  const entries = [...named, ...(faint ? [{ name: count(faint, "other client"), style: "faint" }] : [])];
  const legend = element("ul", entries.map((line) => {
    const swatch = svgElement("svg", { class: "swatch", viewBox: "0 0 26 8", "aria-hidden": "true" });
    swatch.append(svgElement("path", { class: line.style, d: "M0,4L26,4" }));
    return element("li", [swatch, line.name]);
  }), { class: "legend" });
  return element("figure", [svg, element("figcaption", legend)]);
}
