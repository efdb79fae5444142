"use strict";
// Polls the API with the user's token, which is stored for this tab only.

const REFRESH_MS = 3000;
const at = (id) => document.getElementById(id);
const token = {
  get: () => sessionStorage.getItem("token"),
  set: (value) => sessionStorage.setItem("token", value),
  forget: () => sessionStorage.removeItem("token"),
};

async function fetchJson(path) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${token.get()}` } });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error((await answer.json()).title || answer.statusText);
  return answer.json();
}

function element(name, text, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function table(target, head, rows) {
  const top = element("tr");
  head.forEach((text) => top.append(element("th", text, { scope: "col" })));
  const body = rows.map((cells) => {
    const row = element("tr");
    cells.forEach((text) => row.append(element("td", text)));
    return row;
  });
  target.replaceChildren(top, ...body);
}

const share = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const score = (scores, name) => share(scores && scores[name] && scores[name].value);
const label = (name) => name.replaceAll("_", " ");
const personal = (scores) => scores && (scores.final || scores[scores.kept]);
const time = (text) => (text ? new Date(text).toLocaleTimeString() : "–");
const seconds = (value) => (value >= 90 ? `${Math.round(value / 60)} min` : `${Math.round(value)} s`);

function size(bytes) {
  const unit = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, base]) => bytes >= base);
  return unit ? `${(bytes / unit[1]).toFixed(1)} ${unit[0]}` : `${bytes} B`;
}

// Loss and perplexity lead; then the other names that occur, in order.
function names(sets) {
  const all = new Set(sets.filter(Boolean).flatMap((scores) => Object.keys(scores)));
  const first = ["loss", "perplexity"].filter((name) => all.delete(name));
  return [...first, ...[...all].sort()];
}

function headline(federation, round) {
  const total = federation.plan.rounds.total;
  if (!round) return `${federation.name} is ${federation.state}: no round yet, ${federation.clients.enrolled} clients enrolled.`;
  const since = (Date.now() - new Date(round.opened_at)) / 1000;
  const running = `${round.state}${round.published_at ? "" : ` for ${seconds(since)}`}`;
  const now = federation.state === "finished" ? "finished" : federation.state === "paused" ? `${running}, paused` : running;
  const left = round.state === "collecting" && round.deadline
    ? `, deadline in ${seconds(Math.max(0, (new Date(round.deadline) - Date.now()) / 1000))}` : "";
  return `${federation.name}, strategy ${federation.plan.strategy.name}: round ${round.round} of ${total}, ${now}${left}.`;
}

function facts(federation, round) {
  const pairs = [[federation.clients.enrolled, "clients enrolled"]];
  if (round) {
    const { counts, bytes, scores } = round;
    pairs.push([`${counts.arrived} of ${counts.joined}`, "updates of this round"], [counts.late + counts.rejected, "late or rejected"],
      [size(bytes.up), "up in this round"], [size(bytes.down), "down in this round"]);
    if (scores) {
      for (const name of names([scores.mean])) {
        pairs.push([score(scores.mean, name), `mean ${label(name)}`], [score(scores.worst, name), `worst ${label(name)}`]);
      }
    }
  }
  at("facts").replaceChildren(...pairs.map(([value, name]) => {
    const box = element("div", undefined, { class: "fact" });
    box.append(element("b", value), element("span", name));
    return box;
  }));
}

function curve(rounds) {
  const scored = rounds.filter((round) => round.scores).sort((a, b) => a.round - b.round);
  if (!scored.length) {
    at("curve").replaceChildren(element("p", "No scores yet: clients send them after a round.", { class: "empty" }));
    return;
  }
  const [width, height, edge] = [640, 220, 34];
  const last = Math.max(2, scored.at(-1).round);
  const x = (round) => edge + ((width - edge - 12) * (round - 1)) / (last - 1);
  const top = niceTop(Math.max(...scored.map((round) => round.scores.worst.loss.value)));
  const y = (value) => height - edge + 8 - (height - edge - 4) * (value / top);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "mean and worst held-out loss by round");
  const draw = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
  };
  for (const value of [0, 0.25, 0.5, 0.75, 1].map((part) => part * top)) {
    draw("line", { class: "grid", x1: edge, x2: width - 12, y1: y(value), y2: y(value) });
    draw("text", { x: edge - 6, y: y(value) + 4, "text-anchor": "end" }, Number(value.toPrecision(3)));
  }
  for (const kind of ["mean", "worst"]) {
    const points = scored.map((round) => `${x(round.round)},${y(round.scores[kind].loss.value)}`);
    draw("path", { class: kind, d: `M${points.join("L")}` });
  }
  scored.forEach((round) => {
    draw("circle", { cx: x(round.round), cy: y(round.scores.mean.loss.value), r: 3 });
    draw("text", { x: x(round.round), y: height - 6, "text-anchor": "middle" }, round.round);
  });
  at("curve").replaceChildren(svg, element("p", "Held-out loss of the personal models; lower is better. Solid: mean of the clients; dashed: worst client.", { class: "empty" }));
}

// The smallest of 1, 2, 4, 8 times a power of ten that is not below a value.
function niceTop(value) {
  const base = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 2, 4, 8, 10].map((factor) => factor * base).find((limit) => limit >= value) || value;
}

function relevance(view, clientNames) {
  if (!view || !view.clients.length) {
    at("relevance-note").textContent = "No round is published yet.";
    at("relevance").replaceChildren();
    return;
  }
  const weights = view.served || view.relevance;
  at("relevance-note").textContent = `After round ${view.round}: the weight that a row gives to each column.`
    + (view.served ? " Shown is the served share; * is less than the relevance: hover for the reason." : "");
  const name = (client) => clientNames[client] || client;
  table(at("relevance"), ["", ...view.clients.map(name)], weights.map((row, i) =>
    [name(view.rows[i]), ...row.map((value, j) => value.toFixed(2) + (guardReasons(view, i, j).length ? "*" : ""))]));
  const cells = at("relevance").querySelectorAll("td:not(:first-child)");
  weights.flat().forEach((value, at) => {
    const i = Math.floor(at / view.clients.length), j = at % view.clients.length;
    cells[at].style.background = `rgba(var(--brand), ${0.75 * value})`;
    if (guardReasons(view, i, j).length) {
      cells[at].title = `relevance ${view.relevance[i][j].toFixed(2)}, agreement ${share(view.agreement[i][j])}: ${guardReasons(view, i, j).join(", ")}`;
    }
  });
}

function guardReasons(view, i, j) {
  return view.held && view.relevance[i][j] > view.served[i][j] ? view.held[i][j] : [];
}

function showClients(federation, round) {
  const clients = round ? round.clients : [];
  const others = names(clients.map((c) => personal(c.scores))).filter((name) => name !== "loss");
  table(at("clients"), ["client", "state", "received", "up", "down", "norm", "epsilon spent", "loss served → trained", "kept", "final loss", ...others.map(label)],
    clients.map((c) => [c.name, c.reject_reason ? `${c.state}: ${c.reject_reason}` : c.state, time(c.received_at),
      size(c.bytes.up), size(c.bytes.down), share(c.norm),
      c.epsilon === null ? "–" : `${share(c.epsilon)} of ${federation.plan.signature.dp?.epsilon ?? "?"}`,
      c.scores ? `${score(c.scores.served, "loss")} → ${score(c.scores.trained, "loss")}` : "–",
      c.scores ? c.scores.kept : "–", score(c.scores && c.scores.final, "loss"),
      ...others.map((name) => score(personal(c.scores), name))]));
}

function showRounds(rounds) {
  const means = rounds.map((r) => r.scores && r.scores.mean);
  const others = names(means).filter((name) => name !== "loss");
  table(at("rounds"), ["round", "state", "opened", "updates", "up", "down", "mean loss", "worst loss", ...others.map((name) => `mean ${label(name)}`)],
    rounds.map((r, i) => [r.round, r.reason ? `${r.state}: ${r.reason}` : r.state, time(r.opened_at), `${r.counts.arrived} of ${r.counts.joined}`,
      size(r.bytes.up), size(r.bytes.down), score(means[i], "loss"), score(r.scores && r.scores.worst, "loss"), ...others.map((name) => score(means[i], name))]));
}

function showPacks(packs) {
  at("alignment-part").hidden = !packs.length;
  const error = (pack, name) => {
    if (!pack.errors[name]) return "–";
    return `${share(pack.errors[name].b_task)}${pack.selected.includes(name) ? "" : " (not shared)"}`;
  };
  const mean = (values) => values.reduce((a, b) => a + b) / values.length;
  const losses = (pack, start) => pack.acceptance
    ? pack.acceptance.directions.map((direction) => share(mean(direction.endings[start].loss))).join(" / ") : "–";
  table(at("packs"), ["base model", "acceptance test", "loss from right P, Q", "from zero", "wrong task", "random frames", "shares"],
    packs.map((pack) => [pack.base_model, pack.acceptance ? pack.acceptance.verdict : "untested",
      ...["right", "zero", "wrong_task", "random_frames"].map((start) => losses(pack, start)), pack.sharing]));
  const pairs = [...new Set(packs.flatMap((pack) => Object.keys(pack.errors)))].sort();
  table(at("errors"), ["block and role", ...packs.map((pack) => pack.base_model)],
    pairs.map((name) => [name, ...packs.map((pack) => error(pack, name))]));
}

async function show() {
  const federations = (await fetchJson("/v1/federations?limit=100")).items;
  const chosen = at("federation").value || (federations.at(-1) || {}).id;
  at("federation").replaceChildren(...federations.map((f) => element("option", `${f.name} (${f.state})`, { value: f.id })));
  if (!chosen) {
    at("headline").textContent = "No federation yet; create one with `tessera federation create`.";
    return;
  }
  at("federation").value = chosen;
  const path = `/v1/federations/${encodeURIComponent(chosen)}`;
  const federation = federations.find((f) => f.id === chosen) || await fetchJson(path);
  const rounds = (await fetchJson(`${path}/rounds?limit=100`)).items;
  const round = rounds.length ? await fetchJson(`${path}/rounds/${rounds[0].round}`) : null;
  const done = rounds.find((r) => r.state === "published");
  const clients = (await fetchJson(`${path}/clients?limit=100`)).items;
  const clientNames = Object.fromEntries(clients.map((client) => [client.client_id, client.name]));
  at("headline").textContent = headline(federation, round);
  facts(federation, round);
  curve(rounds);
  at("clients-note").textContent = round && round.clients.length ? "" : "No client has joined yet.";
  showClients(federation, round);
  relevance(done ? await fetchJson(`${path}/rounds/${done.round}/relevance`) : null, clientNames);
  showRounds(rounds);
  showPacks(federation.alignment.length ? (await fetchJson(`${path}/alignments`)).items : []);
  at("claims").replaceChildren(...(round || federation).claims.map((claim) => element("li", claim)));
}

async function refresh() {
  const hasToken = Boolean(token.get());
  at("entry").hidden = hasToken;
  at("view").hidden = at("leave").hidden = !hasToken;
  if (!hasToken) return;
  try {
    await show();
    at("updated").textContent = `as of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    at("updated").textContent = `${error.message}; retrying`;
    if (/credential|role/i.test(error.message)) {
      token.forget();
      at("trouble").textContent = error.message;
      at("entry").hidden = false;
      at("view").hidden = true;
    }
  }
}

at("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(at("token").value.trim());
  at("token").value = at("trouble").textContent = "";
  refresh();
});
at("leave").addEventListener("click", () => { token.forget(); refresh(); });
at("federation").addEventListener("change", refresh);
refresh();
setInterval(() => document.hidden || refresh(), REFRESH_MS);
