// The parts of the overview: what happens now, who is missing, whether it helps.

import { mayAct } from "./page.actions.js";
import { linesOf } from "./page.curves.js";
import { chart, code, element, facts, link, note, section, table } from "./page.dom.js";
import { adapterOf } from "./page.plan.js";
import {
  REASONS, TERMS, UNTRAINED, ago, count, difference, isLowerBetter, label, lastSeen, mean, meanChange, meaning, names, number, personal,
  secondsUntil, shownState, signed, size, span, value, verdict,
} from "./page.text.js";

export const byName = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });
export const links = (fid) => ({
  home: `#/${fid}`,
  round: (number) => `#/${fid}/rounds/${number}`,
  client: (id) => `#/${fid}/clients/${id}`,
});

const DOING = {
  open: "is open", collecting: "is collecting updates", summing: "is summing updates", closing: "is closing", aggregating: "is being aggregated",
  published: "is published", abandoned: "was abandoned",
};
const TONE = { arrived: "good", ready: "good", joined: "wait", late: "bad", dropped: "bad", rejected: "bad", revoked: "bad", abandoned: "bad", published: "good", open: "wait", collecting: "wait", active: "good", running: "good", paused: "wait" };
export const state = (text, reason) =>
  element("span", reason ? `${text}: ${reason}` : text, { class: `state ${TONE[text] || ""}` });

// How far a client's training has come: a bar with its numbers.
// A report of long ago says where the training was, and no longer when it ends.
const FRESH_MS = 30000;
export function progressOf({ name, progress }) {
  if (!progress) return "–";
  const { step, steps, loss, seconds_left: left, at } = progress, rest = Date.now() - Date.parse(at) > FRESH_MS ? `reported ${ago(at)}` : `${span(left)} left`;
  const text = `${step} of ${steps}${loss === null ? "" : `, loss ${number(loss)}`}, ${rest}`;
  return element("span", [element("progress", "", { value: step, max: steps, "aria-label": `Training of ${name}` }), ` ${text}`]);
}

// Clients whose update the current round still waits for, with the reason; those that have not joined come last.
export function missing({ current, clients }) {
  if (!current || !["open", "collecting"].includes(current.state)) return [];
  const present = new Map(current.clients.map((c) => [c.client_id, c]));
  const slow = current.clients.filter((c) => c.state === "joined").map((c) => ({ ...c, why: `joined ${ago(c.joined_at)}, no update yet` }));
  const absent = clients.filter((c) => c.state === "enrolled" && !present.has(c.client_id))
    .map((c) => ({ ...c, why: `not joined, last seen ${ago(c.last_seen_at)}` }));
  return [...slow.sort(byName), ...absent.sort(byName)];
}

function sentence({ federation, current, clients }) {
  const { rounds } = federation.plan, enrolled = count(federation.clients.enrolled, "client");
  const command = (verb) => (mayAct(federation.id) ? [` ${verb} it below, or with `, code(`tessera federation start ${federation.id}`), "."] : []);
  if (!current) return [`${enrolled} enrolled; a round begins with ${rounds.min_clients}.`, ...command("Start")];
  const { counts } = current;
  if (federation.state === "finished") return [`${count(clients.filter((c) => c.rounds).length, "client")} sent updates. Each agent fetches its final weights and scores them.`];
  const paused = federation.state === "paused" ? ["Paused: no further round opens.", ...command("Resume"), " "] : [];
  if (current.state === "open") {
    const advice = current.advice ? ` ${current.advice}.` : "";
    return [...paused, `${counts.joined} of the ${count(rounds.min_clients, "client")} that a round needs have joined; ${counts.arrived} have delivered.${advice}`];
  }
  if (current.state === "collecting") {
    const left = secondsUntil(current.deadline);
    const end = left > 0 ? `The round closes in ${span(left)}, or when all clients have delivered.` : "The deadline has passed; the round closes now.";
    return [...paused, `${counts.arrived} of ${count(counts.joined, "client")} have delivered. ${end} With fewer than ${count(rounds.quorum, "update")} at the deadline the round is abandoned.`];
  }
  if (current.state === "summing") return [...paused, `${count(counts.arrived, "client")} have trained, and send shares of a sum of their updates.`];
  if (current.state === "abandoned") return [...paused, `Reason: ${REASONS[current.reason] || current.reason}.`];
  if (current.state === "published") return [...paused, `Published ${ago(current.published_at)}. The next round opens by itself unless the federation is paused.`];
  return [...paused, `${count(counts.arrived, "update")} are being mixed; clients wait for their weights.`];
}

function planOf({ federation: { name, plan }, clients }) {
  const models = new Set(clients.map((c) => c.profile.base_model)).size;
  return `${name}: strategy ${plan.strategy.name}, ${adapterOf(plan.adapter)}, ${models ? count(models, "base model") : "no client yet"}.`;
}

export function headlineSection(data) {
  const { federation, current, rounds, isComplete } = data, published = rounds.filter((round) => round.state === "published").length, total = federation.plan.rounds.total;
  const title = federation.state === "finished" ? `${federation.name} is finished${isComplete ? ` after ${count(published, "published round")}` : ""}`
    : current ? `Round ${current.round} of ${total} ${DOING[current.state]}` : `${federation.name} has not started`;
  const late = missing(data), href = links(federation.id);
  const list = late.slice(0, 6).flatMap((c, i) => [i ? ", " : "", link(c.name, href.client(c.client_id)), ` (${c.why})`]);
  if (late.length > 6) list.push(` and ${late.length - 6} more`);
  return element("section", [
    element("h2", title, { id: "headline", "aria-live": "polite" }),
    element("p", sentence(data), { class: "lead", id: "now" }),
    note(planOf(data), { id: "plan" }),
    late.length && federation.state !== "finished" && current.counts.joined ? element("p", [element("b", "Waiting for ", { class: "wait" }), ...list, "."], { id: "missing" }) : null,
  ], { id: "headline-part" });
}

// Changes of the loss, per client: by mixing, as the client measured it on paired examples, and since the first
// scored round, most of which is the client's own training.
export function changes({ scored, start }) {
  const first = new Map((start ? start.clients : []).map((c) => [c.client_id, c.scores]));
  return new Map((scored ? scored.clients : []).filter((c) => c.scores).map((c) => {
    const began = first.get(c.client_id);
    return [c.client_id, {
      mixing: c.scores.mixing || null,
      isDeclined: c.scores.began === "trained",
      start: difference(value(personal(c.scores), "loss"), value(began && began.served, "loss")),
    }];
  }));
}

const UNSEEN = 0.0005; // smaller changes are 0.000 in the page's digits

function sinceStart(values) {
  const known = values.filter((x) => x !== null);
  if (!known.length) return null;
  const total = mean(known), [lower, higher] = [known.filter((x) => x <= -UNSEEN).length, known.filter((x) => x >= UNSEEN).length];
  return [signed(total), "mean change of loss since the start", !lower && !higher ? `no change in three digits for ${count(known.length, "client")}` : `lower for ${lower}, higher for ${higher} of ${count(known.length, "client")}; own training included`];
}

const measured = (value) => signed(value).replace("±", ""); // an error follows
const changeCell = ({ mixing, isDeclined }) => (mixing ? element("span", `${measured(mixing.value)} ± ${number(mixing.error)}${isDeclined ? ", declined" : ""}`, { class: verdict(mixing) }) : "–");

function byMixing(changes) {
  const known = changes.filter((x) => x !== null);
  if (!known.length) return null;
  const total = meanChange(known), of = (name) => known.filter((x) => verdict(x) === name).length;
  return [element("b", measured(total.value), { class: verdict(total) }), "mean change of loss by mixing",
    `± ${number(total.error)} ${verdict(total) ? "" : "(within noise) "}· better for ${of("good")}, worse for ${of("bad")} of ${count(known.length, "client")}`];
}

export function factsSection(data) {
  const { federation, current, rounds, isComplete } = data, pairs = [];
  const { enrolled, revoked } = federation.clients;
  pairs.push([enrolled, "clients enrolled", revoked ? `${revoked} revoked` : null]);
  if (current) {
    const { counts, bytes } = current, up = rounds.reduce((sum, r) => sum + r.bytes.up, 0), down = rounds.reduce((sum, r) => sum + r.bytes.down, 0);
    const lost = counts.late + counts.rejected + counts.dropped;
    pairs.push([counts.joined ? `${counts.arrived} of ${counts.joined}` : "none", `updates in round ${current.round}`, lost ? `${counts.late} late, ${counts.rejected} rejected${counts.dropped ? `, ${counts.dropped} dropped` : ""}` : counts.joined ? null : "no client has joined"],
      [size(bytes.up), `sent by clients in round ${current.round}`, isComplete ? `${size(up)} in all rounds` : null],
      [size(bytes.down), `sent to clients in round ${current.round}`, isComplete ? `${size(down)} in all rounds` : null]);
  }
  const boxes = facts(pairs.map(([shown, name, detail]) => [shown, name, detail]));
  return element("section", boxes, { id: "facts" });
}

// `few` are the rounds of a federation whose clients all have a curve in the chart.
export function helpSection(data, ui, few = []) {
  const { scored, rounds, clientNames } = data;
  if (!scored) return section("help", "Does it help?", note("No scores yet. Each client scores its models on its own held-out examples after a round, and sends only the numbers.", { class: "empty" }));
  const all = [...changes(data).values()], { mean: means, worst } = scored.scores;
  const shown = names([means]), metric = shown.includes(ui.metric) ? ui.metric : "loss";
  const summed = scored.secure_sum && scored.secure_sum.losses;
  const boxes = [
    summed ? [number(summed.trained.value), "mean loss after training", `as served ${number(summed.served.value)}`]
      : [number(value(means, "loss")), "mean loss of the personal models", `worst client ${number(value(worst, "loss"))}`],
    byMixing(all.map((x) => x.mixing)),
    sinceStart(all.map((x) => x.start)),
  ].filter(Boolean);
  const buttons = shown.map((name) => element("button", label(name), { type: "button", "aria-pressed": String(name === metric), "data-metric": name, id: `metric-${name}` }));
  const points = (kind) => rounds.filter((r) => r.scores && r.round <= scored.round && value(r.scores[kind], metric) !== null).map((r) => [r.round, r.scores[kind][metric].value]).reverse();
  const better = isLowerBetter(metric) ? "lower is better" : "higher is better";
  const lines = few.length ? linesOf(few, metric, (id) => clientNames[id] || id)
    : [{ name: "mean of the clients", style: "first", points: points("mean") }, ...(worst ? [{ name: "worst client", style: "second", points: points("worst") }] : [])];
  return section("help", "Does it help?",
    note([`Held-out scores of round ${scored.round}, ${scored.published_at ? "the newest published round with them" : "which is not published yet"}, from ${summed ? summed.trained.count : scored.clients.filter((c) => c.scores).length} of ${count(scored.clients.length, "client")}. `
      + (summed ? "Scores are summed like the updates: no client's own loss is known." : "The changes compare a client with itself.") + " What a client would reach alone is not measured here; ", code("tessera compare"), " measures it."]),
    facts(boxes), untrained(data),
    element("div", [
      element("div", [element("h3", `${label(metric)} by round (${better})`), element("div", buttons, { class: "metrics", role: "group", "aria-label": "Score shown in the chart" }),
        element("div", chart(`Held-out ${label(metric)}`, metric === "loss" ? "loss, nats per token" : label(metric), lines), { id: "curve" })]),
      element("div", [element("h3", `Scores of round ${scored.round}`),
        table("scores", `Scores of round ${scored.round}`, [{ name: "score", few: true }, { name: "mean", few: true }, { name: "worst client", few: true }, { name: "clients", few: true }],
          shown.map((name) => [element("abbr", `${label(name)} ${isLowerBetter(name) ? "↓" : "↑"}`, { title: meaning(name) }), number(means[name].value), number(value(worst, name)), String(means[name].count)])),
        note("↓ lower is better, ↑ higher is better.")]),
    ], { class: "two" }));
}

function untrained({ scored, start }) {
  const began = (start ? start.clients : []).map((c) => value(c.scores && c.scores.served, "loss")).filter((x) => x !== null);
  return untrainedNote(value(scored.scores.mean, "loss"), began.length ? mean(began) : null);
}

// A word on a loss that only a model has which was never shown the format of the answers, now or at the start.
export function untrainedNote(now, first) {
  if (now !== null && now > UNTRAINED) return note(`A loss of ${number(now)} is that of a model that does not know the format of the answers yet. Most of it goes in the first steps of training; it says nothing about mixing.`, { id: "untrained" });
  return first !== null && first > UNTRAINED ? note(`The start cost ${number(first)}, because the base model does not know the format of the answers. Most of the change since the start is that format, learned in the first steps; it says nothing about mixing.`, { id: "untrained" }) : null;
}

export function clientsSection(data) {
  const { federation, clients, tokens, current, scored } = data, href = links(federation.id);
  const now = new Map((current ? current.clients : []).map((c) => [c.client_id, c]));
  const scores = new Map((scored ? scored.clients : []).map((c) => [c.client_id, c.scores])), changed = changes(data);
  const metrics = names([...scores.values()].map(personal)).filter((name) => name !== "loss");
  const hasFinal = [...scores.values()].some((s) => s && s.final), isTraining = [...now.values()].some((c) => c.progress);
  const columns = [
    { name: "client", few: true }, { name: "state", few: true, text: true, head: current ? `in round ${current.round}` : "state" }, ...(isTraining ? [{ name: "progress", few: true, text: true }] : []), { name: "last seen" },
    { name: "served", head: "loss served" }, { name: "trained", head: "loss trained", few: !hasFinal }, ...(hasFinal ? [{ name: "final", head: "loss final", few: true }] : []),
    { name: "by mixing" }, { name: "since start", few: true }, ...metrics.map((name) => ({ name: label(name) })), { name: "rounds" },
  ];
  const rows = [...clients].sort(byName).map((c) => {
    const s = scores.get(c.client_id), part = now.get(c.client_id), moved = changed.get(c.client_id) || {};
    return [link(c.name, href.client(c.client_id)), c.state === "revoked" ? state("revoked") : part ? state(shownState(part.state, current.state)) : current ? "not joined" : "enrolled",
      ...(isTraining ? [part ? progressOf(part) : "–"] : []), ago(lastSeen(c, part)),
      number(s && value(s.served, "loss")), number(s && value(s.trained, "loss")), ...(hasFinal ? [number(s && value(s.final, "loss"))] : []),
      changeCell(moved), signed(moved.start), ...metrics.map((name) => number(value(personal(s), name))), String(c.rounds)];
  });
  const invitation = !mayAct(federation.id) ? ["No client is enrolled yet. An operator creates a token for each silo."]
    : tokens.length ? ["No client is enrolled yet."] : ["No client is enrolled yet. Create a token above, or with ", code(`tessera enrolment create ${federation.id} NAME`), ", and hand it to the silo."];
  const waiting = tokens.map((token) => element("li", [element("b", token.client_name), `: token unused, expires in ${span(Math.max(0, secondsUntil(token.expires_at)))}`]));
  return section("clients", "Clients",
    clients.length ? note(scored ? `Scores are those of round ${scored.round}.` : "Scores appear after the first published round.") : note(invitation),
    clients.length ? table("clients", "Clients", columns, rows) : null,
    waiting.length ? element("ul", waiting, { id: "tokens", class: "claims", "aria-label": "Unused enrolment tokens" }) : null);
}

const NEWEST = 8;
export function roundsSection({ federation, rounds }) {
  const href = links(federation.id), means = rounds.map((r) => r.scores && r.scores.mean);
  const others = names(means).filter((name) => name !== "loss");
  const columns = [{ name: "round", few: true }, { name: "state", few: true, text: true }, { name: "opened" }, { name: "updates", few: true }, { name: "up" }, { name: "down" },
    { name: "loss", head: "mean loss", few: true }, { name: "worst loss" }, ...others.map((name) => ({ name: `mean ${label(name)}` }))];
  const rows = rounds.map((r, i) => [link(String(r.round), href.round(r.round)), state(r.state, r.reason), ago(r.opened_at), r.counts.joined ? `${r.counts.arrived} of ${r.counts.joined}` : "–",
    size(r.bytes.up), size(r.bytes.down), number(value(means[i], "loss")), number(value(r.scores && r.scores.worst, "loss")), ...others.map((name) => number(value(means[i], name)))]);
  if (!rounds.length) return section("rounds", "Rounds", note("No round yet."));
  return section("rounds", "Rounds", table("rounds", "Newest rounds", columns, rows.slice(0, NEWEST)),
    rows.length > NEWEST ? element("details", [element("summary", `${rows.length - NEWEST} earlier rounds`), table("rounds-before", "Earlier rounds", columns, rows.slice(NEWEST))], { id: "rounds-all" }) : null);
}

export function packsSection(packs) {
  const error = (pack, name) => (pack.errors[name] ? `${number(pack.errors[name].b_task)}${pack.selected.includes(name) ? "" : " (not shared)"}` : "–");
  const losses = (pack, start) => (pack.acceptance ? pack.acceptance.directions.map((d) => number(mean(d.endings[start].loss))).join(" / ") : "–");
  const column = (name, few = false, text = false) => ({ name, few, text });
  const pairs = [...new Set(packs.flatMap((pack) => Object.keys(pack.errors)))].sort();
  return section("alignment", "Alignment between base models",
    note("One pack per base model makes adapters of different architectures comparable. The acceptance test transfers a task from the pivot to the base model / and back; the losses after its steps are from the right adapter, from zero, and from two wrong ones. The loss from the right adapter should be the lowest."),
    table("packs", "Alignment packs", [column("base model", true), column("acceptance test", true, true), column("loss from right P, Q"), column("from zero"), column("wrong task"), column("random frames"), column("shares", true, true)],
      packs.map((pack) => [pack.base_model, pack.acceptance ? pack.acceptance.verdict : "untested", ...["right", "zero", "wrong_task", "random_frames"].map((start) => losses(pack, start)), element("span", pack.sharing, { class: "prose" })])),
    element("details", [element("summary", "Held-out errors by block and role"),
      note("Relative error with which the pack reproduces task gradients on held-out texts; 0 is exact, and above the plan's limit a module is not shared."),
      table("errors", "Held-out errors of task gradients", [column("block and role", true), ...packs.map((pack) => column(pack.base_model, true))], pairs.map((name) => [name, ...packs.map((pack) => error(pack, name))]))], { id: "errors-all" }));
}

const FIRST = 3;
// The coordinator names the claims that matter most first.
export const claimsSection = (claims) => section("claims", "What may be claimed", note("Privacy and security claims that follow from the plan and from the counts of the round."),
  element("ul", claims.slice(0, FIRST).map((claim) => element("li", claim)), { id: "claims", class: "claims" }),
  claims.length > FIRST ? element("details", [element("summary", `${count(claims.length - FIRST, "further claim")}`), element("ul", claims.slice(FIRST).map((claim) => element("li", claim)), { class: "claims" })], { id: "claims-all" }) : null);

export const termsSection = () => element("section", element("details", [element("summary", "What the numbers mean"),
  element("dl", Object.entries(TERMS).flatMap(([name, text]) => [element("dt", name), element("dd", text)]), { class: "terms" })], { id: "terms-all" }), { id: "terms-part" });
