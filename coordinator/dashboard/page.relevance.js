// Who listens to whom: the matrix of a round, and one client's part of it.

import { element, link, note, section } from "./page.dom.js";
import { number } from "./page.text.js";

const DENSE = 12;
const WHY = {
  large: "its update is longer than the receiver's",
  opposed: "its update points away from the receiver's",
  copies: "its update nearly equals others'",
  capped: "it is above the largest weight of a client or an organisation",
  few: "the mixture has fewer members than the plan demands",
};

const weightsOf = (matrix) => matrix.served || matrix.relevance;
const isHeld = (matrix, i, j) => matrix.held && matrix.held[i][j].length && matrix.relevance[i][j] > matrix.served[i][j];

function explain(matrix, i, j, row, column) {
  const based = [["sketches", matrix.similarity], ["changes", matrix.changes]]
    .filter(([, known]) => i !== j && known && known[i][j] !== null).map(([what, known]) => `similarity of ${what} ${number(known[i][j])}`);
  const shown = [`${row} listens to ${column}: ${weightsOf(matrix)[i][j].toFixed(3)}`, ...based].join("; ");
  if (!isHeld(matrix, i, j)) return shown;
  return `${shown}; relevance ${matrix.relevance[i][j].toFixed(3)}, agreement ${number(matrix.agreement[i][j])}, held back: `
    + matrix.held[i][j].map((reason) => WHY[reason] || reason).join(", ");
}

export function relevanceSection(matrix, name, href, published) {
  if (!matrix) {
    return section("relevance", "Relevance between clients",
      note(published ? `Round ${published} has no relevance matrix: its strategy weighs clients without one.`
        : "No round is published yet. The matrix appears with the first one.", { id: "relevance-note" }));
  }
  const weights = weightsOf(matrix), dense = matrix.clients.length > DENSE;
  const top = Math.max(...weights.flat(), 1e-9);
  const order = (ids) => ids.map((id, i) => [name(id), i]).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([, i]) => i);
  const rows = order(matrix.rows), columns = order(matrix.clients);
  const head = element("tr", [element("td", "", { class: "corner" }), ...columns.map((j) => element("th", name(matrix.clients[j]), { scope: "col", title: name(matrix.clients[j]) }))]);
  const body = rows.map((i) => element("tr", [
    element("th", link(name(matrix.rows[i]), href(matrix.rows[i])), { scope: "row", title: name(matrix.rows[i]) }),
    ...columns.map((j) => {
      const part = weights[i][j] / top, text = weights[i][j].toFixed(2) + (isHeld(matrix, i, j) ? "*" : "");
      const cell = element("td", dense ? element("span", text, { class: "unseen" }) : text,
        { title: explain(matrix, i, j, name(matrix.rows[i]), name(matrix.clients[j])), ...(part > 0.5 ? { class: "dark" } : {}) });
      cell.style.background = `rgba(var(--brand), ${part > 0.5 ? 0.78 + 0.22 * part : part})`;
      return cell;
    })]));
  const any = rows.some((i) => columns.some((j) => isHeld(matrix, i, j)));
  return section("relevance", "Relevance between clients",
    note(`After round ${matrix.round}: how much each row's client listens to each column's client; a row sums to 1. `
      + (matrix.changes ? "Relevance rests on what the clients change in their rounds, and on gradient sketches for clients that have no round yet. " : matrix.similarity ? "Relevance rests on gradient sketches. " : "")
      + (matrix.served ? "The values are the served shares, after the guard against poisoned updates. " : "")
      + (any ? "* is less than the relevance, because the guard held it back; hover for the reason. " : "")
      + (dense ? "Hover a cell for its value, or open a client to see its row." : ""), { id: "relevance-note" }),
    element("div", element("table", [element("caption", `Relevance after round ${matrix.round}`, { class: "unseen" }), element("thead", head), element("tbody", body)],
      { id: "relevance", ...(dense ? { class: "dense" } : {}) }), { class: "wide", tabindex: "0", role: "region", "aria-label": "Relevance between clients" }),
    element("p", ["0", element("i", "", { "aria-hidden": "true" }), top.toFixed(2)], { class: "scale" }));
}

// One client's row and column, the largest weights first.
export function voicesSection(matrix, id, name, href) {
  const i = matrix ? matrix.rows.indexOf(id) : -1;
  if (i < 0) return section("voices", "Who it listens to", note("No published round has a relevance row of this client."));
  const weights = weightsOf(matrix)[i];
  const parts = weights.map((weight, j) => [weight, j]).filter(([weight]) => weight >= 0.005).sort((a, b) => b[0] - a[0]).slice(0, DENSE);
  const body = parts.map(([weight, j]) => {
    const bar = element("span", "", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(7 * weight) / parts[0][0]}rem`;
    return element("tr", [
      element("th", matrix.clients[j] === id ? `${name(id)} (itself)` : link(name(matrix.clients[j]), href(matrix.clients[j])), { scope: "row" }),
      element("td", weight.toFixed(2)), element("td", bar, { class: "text" }),
      element("td", isHeld(matrix, i, j) ? matrix.held[i][j].map((reason) => WHY[reason] || reason).join(", ") : "", { class: "text note" })]);
  });
  const table = element("table", [element("caption", "Shares of the mixture", { class: "unseen" }), element("tbody", body)], { id: "voices" });
  return section("voices", "Who it listens to",
    note(`Shares of the other clients' updates in the weights served to this client after round ${matrix.round}; shares below 0.005 are left out.`),
    element("div", table, { class: "wide", tabindex: "0", role: "region", "aria-label": "Who it listens to" }));
}

// The matrices of several rounds as small multiples, the oldest first; a button asks for them.
export function historySection(matrices, name) {
  if (!matrices.length) return element("section", element("button", "Show relevance over rounds", { type: "button", "data-action": "history", id: "do-history" }), { id: "relevance-rounds-part", class: "actions" });
  const ids = [...new Set(matrices.flatMap((matrix) => matrix.clients))].sort((a, b) => name(a).localeCompare(name(b), "en", { numeric: true }));
  const top = Math.max(...matrices.flatMap((matrix) => weightsOf(matrix).flat()), 1e-9);
  const small = (matrix) => {
    const rows = ids.map((row) => element("tr", ids.map((column) => {
      const i = matrix.rows.indexOf(row), j = matrix.clients.indexOf(column), isKnown = i >= 0 && j >= 0;
      const cell = element("td", "", { title: isKnown ? explain(matrix, i, j, name(row), name(column)) : `${name(row)} or ${name(column)} is not in round ${matrix.round}` });
      if (isKnown) cell.style.background = `rgba(var(--brand), ${weightsOf(matrix)[i][j] / top})`;
      return cell;
    })));
    const pairs = matrix.rows.map((row, i) => [row, i]).filter(([row]) => matrix.clients.includes(row));
    const alone = pairs.length ? pairs.reduce((sum, [row, i]) => sum + weightsOf(matrix)[i][matrix.clients.indexOf(row)], 0) / pairs.length : null;
    return element("figure", [element("table", element("tbody", rows), { class: "small", role: "img", "aria-label": `Relevance after round ${matrix.round}: a client's mean share in its own mixture is ${number(alone)}` }),
      element("figcaption", `round ${matrix.round}`)]);
  };
  return section("relevance-rounds", "Relevance over rounds",
    note("One square per pair, in the order of the matrix above: rows listen to columns. The scale is common to all rounds; hover for a value."),
    element("div", matrices.map(small), { class: "multiples" }));
}
