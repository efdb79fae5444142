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
  { class: pairs.length < 4 ? "facts few" : "facts" });
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

// Where values stand far above the others, as the loss of an untrained model does, the top of the axis: the largest of
// the others. The widest gap divides them, and at most a third of the values is cut off; null = none.
export function cutOf(values) {
  const sorted = [...values].sort((a, b) => a - b), gap = (i) => sorted[i] - sorted[i - 1];
  const places = sorted.map((_, i) => i).filter((i) => i >= Math.max(3, (2 * sorted.length) / 3)).sort((a, b) => gap(b) - gap(a));
  if (!places.length) return null;
  const top = sorted[places[0] - 1], range = Math.max(top - sorted[0], 0.1 * Math.abs(top));
  return gap(places[0]) > 2 * range ? top : null;
}

// The parts of a line below a limit, in each of which points follow each other.
function partsBelow(points, limit) {
  const parts = [];
  let part = [];
  points.forEach(([round, value], i) => {
    const before = points[i - 1];
    if (before && before[1] > limit !== value > limit) part.push([before[0] + ((round - before[0]) * (limit - before[1])) / (value - before[1]), limit]);
    if (value <= limit) part.push([round, value]);
    else if (part.length) { parts.push(part); part = []; }
  });
  return part.length ? [...parts, part] : parts;
}

const SCALE = 7; // the width of a digit on the axis

// Lines are { name, style, points: [[round, value], ...] }; the vertical axis does not begin at zero. Lines of the style
// "faint" stand behind the others: without dots, and without a name of their own in the legend.
export function chart(name, unit, lines) {
  const points = lines.flatMap((line) => line.points), named = lines.filter((line) => line.style !== "faint"), faint = lines.length - named.length;
  const values = points.map(([, value]) => value), top = cutOf(values);
  const cut = lines.every((line) => line.points.some(([, value]) => value <= top)) ? top : null; // no line disappears
  const [low, high] = [Math.min(...values), cut ?? Math.max(...values)];
  const around = high - low < 1e-3 * Math.abs(high) ? 0.05 * Math.abs(high) : 0, levels = ticks(low - around, high + around); // equal values stand in the middle
  const digits = [0, 1, 2, 3, 4, 5].find((d) => levels.every((level) => Math.abs(level - level.toFixed(d)) < 1e-9)) ?? 6;
  const labels = levels.map((level) => level.toFixed(digits)), limit = cut === null ? Infinity : levels.at(-1);
  const width = Math.max(300, Math.min(640, window.innerWidth < 832 ? window.innerWidth - 30 : (window.innerWidth - 80) * 0.58));
  const [height, left, right, head, bottom] = [260, 14 + SCALE * Math.max(...labels.map((text) => text.length)), 14, 34, 40];
  const first = Math.min(...points.map(([round]) => round)), last = Math.max(...points.map(([round]) => round));
  const x = (round) => left + (width - left - right) * (first === last ? 0.5 : (round - first) / (last - first)); // a single round stands in the middle
  const y = (value) => height - bottom - ((height - head - bottom) * (value - levels[0])) / (levels.at(-1) - levels[0]);
  const above = lines.flatMap((line) => line.points.filter(([, value]) => value > limit).map(([round, value]) => ({ line: line.name, round, value })));
  const svg = svgElement("svg", { viewBox: `0 0 ${width.toFixed(0)} ${height}`, role: "img", "aria-label": `${name} by round: ${named.map((line) =>
    `${line.name} ${number(line.points[0][1])} in round ${line.points[0][0]}, ${number(line.points.at(-1)[1])} in round ${line.points.at(-1)[0]}`).join("; ")}` });
  levels.forEach((level, i) => {
    svg.append(svgElement("line", { class: "grid", x1: left, x2: width - right, y1: y(level), y2: y(level) }),
      svgElement("text", { x: left - 7, y: y(level) + 4, "text-anchor": "end" }, labels[i]));
  });
  const every = ticks(0, Math.max(4, last - first))[1];
  for (let round = first; round <= last; round += 1) {
    if (last - first > 8 && round % Math.ceil(every) !== 0) continue;
    svg.append(svgElement("text", { x: x(round), y: height - bottom + 17, "text-anchor": "middle" }, round));
  }
  svg.append(svgElement("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "round"), svgElement("text", { x: 2, y: 13 }, unit));
  for (const line of lines) {
    const d = partsBelow(line.points, limit).map((part) => `M${part.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join("L")}`).join("");
    svg.append(svgElement("path", { class: line.style, d }));
    for (const [round, value] of line.style === "faint" ? [] : line.points) {
      const isAbove = value > limit, [px, py] = [x(round), y(Math.min(value, limit))];
      const dot = isAbove ? svgElement("polygon", { class: line.style, points: `${px - 5},${py} ${px + 5},${py} ${px},${py - 9}` })
        : svgElement("circle", { class: line.style, cx: px.toFixed(1), cy: py.toFixed(1), r: points.length > 120 ? 1.5 : 3 });
      dot.append(svgElement("title", {}, `round ${round}: ${line.name} ${number(value)}${isAbove ? ", above the axis" : ""}`));
      svg.append(dot);
    }
  }
  const entries = [...named, ...(faint ? [{ name: count(faint, "other client"), style: "faint" }] : [])];
  const legend = element("ul", entries.map((line) => {
    const swatch = svgElement("svg", { class: "swatch", viewBox: "0 0 26 8", "aria-hidden": "true" });
    swatch.append(svgElement("path", { class: line.style, d: "M0,4L26,4" }));
    return element("li", [swatch, line.name]);
  }), { class: "legend" });
  const rest = above.length > 3 ? ` and ${above.length - 3} more` : "";
  const cutNote = above.length ? note(`The axis is cut at ${labels.at(-1)}. ▲ above it: ${above.slice(0, 3).map((point) => `${number(point.value)} (${point.line}, round ${point.round})`).join(", ")}${rest}.`, { class: "note cut" }) : null;
  return element("figure", [svg, element("figcaption", [legend, cutNote])]);
}
