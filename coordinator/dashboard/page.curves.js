// A score of every client by round: a curve each, with the best, the worst and the chosen ones in front.

import { chart, element, link, note, section, table } from "./page.dom.js";
import { count, isLowerBetter, label, number, personal, value } from "./page.text.js";

const ALL = 4; // so few curves are told apart without choosing
const STYLES = ["first", "second", "third", "fourth"]; // of the own client on its page, the best, the worst, and the newest two that were chosen

// `views` are rounds with their clients, the newest first; a client's points begin with its first round.
function seriesOf(views, metric) {
  const series = new Map();
  for (const { round, clients } of [...views].reverse()) {
    for (const { client_id: id, scores } of clients) {
      const score = value(personal(scores), metric);
      if (score !== null) series.set(id, [...(series.get(id) || []), [round, score]]);
    }
  }
  return series;
}

// Ids from the best to the worst, by the newest value of each.
function ordered(series, metric) {
  const newest = (id) => series.get(id).at(-1)[1], sign = isLowerBetter(metric) ? 1 : -1;
  return [...series.keys()].sort((a, b) => sign * (newest(a) - newest(b)));
}

// Whether so few clients have scores in these rounds that their curves stand in place of the mean and the worst one.
export function isSmall(views, metric) {
  const { size } = seriesOf(views, metric);
  return size >= 2 && size <= ALL;
}

// The curve of each client that has scores but for one, in order.
export const linesOf = (views, metric, name, without = null) => {
  const series = seriesOf(views, metric);
  return ordered(series, metric).filter((id) => id !== without).map((id, i) => ({ name: name(id), style: STYLES[i], points: series.get(id) }));
};

// The chart of all clients; null with fewer than two that have scores.
export function curves(views, metric, name, chosen, own = null) {
  const series = seriesOf(views, metric), ids = ordered(series, metric);
  if (ids.length < 2) return null;
  const title = (id) => `${name(id)}${id === ids[0] ? " (best)" : id === ids.at(-1) ? " (worst)" : ""}`;
  const front = [...new Set([...(series.has(own) ? [own] : []), ids[0], ids.at(-1), ...(ids.length <= ALL ? ids : chosen.filter((id) => series.has(id)).slice(-2))])];
  const line = (id, style) => ({ name: title(id), style, points: series.get(id) });
  const lines = [...ids.filter((id) => !front.includes(id)).map((id) => line(id, "faint")), ...front.map((id, i) => line(id, STYLES[i]))];
  return { ids, series, front, figure: element("div", chart(`Held-out ${label(metric)} of each client`, metric === "loss" ? "loss, nats per token" : label(metric), lines), { class: "curves" }) };
}

// The table has all values of the chart, and a button for each client, which brings its curve to the front.
export function curvesSection(views, metric, name, chosen, href, hasEarlier) {
  const title = `Held-out ${label(metric)} of each client by round (${isLowerBetter(metric) ? "lower" : "higher"} is better)`;
  const more = (text) => element("button", text, { type: "button", "data-action": "curves", id: "do-curves" });
  if (!views.length) return element("section", more("Show a curve per client"), { id: "curves-part", class: "actions" });
  const shown = curves(views, metric, name, chosen);
  if (!shown) return section("curves", title, note(`Fewer than two clients have sent this score in the newest ${count(views.length, "round")}.`, { class: "empty" }));
  const { ids, series, front, figure } = shown, isInFront = isSmall(views, metric), rounds = views.map((view) => view.round).reverse();
  const columns = [{ name: "client", few: true }, ...(ids.length > ALL ? [{ name: "in front", few: true, text: true }] : []), ...rounds.map((round, i) => ({ name: `round ${round}`, few: i === rounds.length - 1 }))];
  const pick = (id) => element("button", front.includes(id) ? "in front" : "bring to the front", { type: "button", "data-curve": id, id: `curve-${id}`, "aria-label": `Curve of ${name(id)}`, "aria-pressed": String(front.includes(id)),
    ...(id === ids[0] || id === ids.at(-1) ? { disabled: "" } : {}) });
  const rows = ids.map((id) => {
    const points = new Map(series.get(id));
    return [link(name(id), href(id)), ...(ids.length > ALL ? [pick(id)] : []), ...rounds.map((round) => number(points.get(round)))];
  });
  return section("curves", title,
    note(`Personal models in the newest ${count(views.length, "round")}. ${isInFront ? "Their curves are in the chart above." : ids.length > ALL ? "The best and the worst client, by their newest score, are in front; the table brings two more there." : ""}`), ...(isInFront ? [] : [figure]),
    element("details", [element("summary", `Values of ${count(ids.length, "client")}`), table("curves-values", title, columns, rows)], { id: "curves-all" }),
    hasEarlier ? element("p", more("Show earlier rounds too"), { class: "actions" }) : null);
}
