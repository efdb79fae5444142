// The views of one round and of one client.

import { chart, element, facts, link, note, section, table } from "./page.dom.js";
import { REASONS, ago, count, difference, kept, keptName, label, lastSeen, names, number, personal, shownState, signed, size, span, value } from "./page.text.js";
import { curves, linesOf } from "./page.curves.js";
import { voicesSection } from "./page.relevance.js";
import { byName, links, progressOf, state, untrainedNote } from "./page.views.js";

const back = (federation, ...more) => element("nav", [link(`← ${federation.name}`, links(federation.id).home), ...more], { class: "back", id: "back", "aria-label": "Where you are" });

// Sessions of the round's sum, and who answered each step.
function sumSection({ sessions, counted }) {
  const steps = (answered) => Object.entries(answered).map(([step, many]) => `${step} ${many}`).join(", ") || "–";
  const columns = [{ name: "session", few: true }, { name: "state", few: true, text: true }, { name: "members", few: true }, { name: "answered", text: true }, { name: "duration", few: true }];
  const rows = sessions.map((s) => [`${s.number} (${s.kind})`, state(s.state, s.reason), String(s.members), steps(s.answered), span(s.seconds)]);
  return section("sum", "Sum of the updates", rows.length ? table("sessions", "Sessions of the sum", columns, rows) : note("No session yet. A sum begins once enough clients have trained."),
    counted === null ? null : note(`The sum has the updates of ${count(counted, "member")}.`));
}

export function roundSections({ federation, rounds }, round) {
  const href = links(federation.id), newest = rounds.length ? rounds[0].round : round.round;
  const steps = [round.round > 1 ? link(`round ${round.round - 1}`, href.round(round.round - 1)) : null, round.round < newest ? link(`round ${round.round + 1}`, href.round(round.round + 1)) : null];
  const { counts, bytes, scores } = round;
  const phases = Object.entries(round.seconds).map(([phase, seconds]) => `${phase} ${span(seconds)}`).join(", ");
  const boxes = [[counts.joined ? `${counts.arrived} of ${counts.joined}` : "none", "updates", !counts.joined ? "no client has joined" : `${counts.late} late, ${counts.rejected} rejected${counts.dropped ? `, ${counts.dropped} dropped` : ""}`],
    [size(bytes.up), "sent by clients"], [size(bytes.down), "sent to clients"]];
  if (round.sample) boxes.push([`${round.sample.drawn.length}${round.sample.places === null ? "" : ` of ${round.sample.places}`}`, "drawn for this round", round.sample.drawn.join(", ") || null]);
  const { losses } = round.secure_sum || {};
  if (losses) boxes.push([number(losses.trained.value), "mean loss after training", `as served ${number(losses.served.value)}, of ${count(losses.trained.count, "member")}`]);
  else if (scores) {
    boxes.push([number(value(scores.mean, "loss")), "mean loss of the personal models", scores.worst ? `worst client ${number(value(scores.worst, "loss"))}` : null]);
    for (const name of names([scores.mean]).filter((x) => x !== "loss" && x !== "perplexity")) {
      boxes.push([number(value(scores.mean, name)), `mean ${label(name)}`, scores.worst ? `worst client ${number(value(scores.worst, name))}` : null]);
    }
  }
  const metrics = names(round.clients.map((c) => personal(c.scores))).filter((name) => name !== "loss");
  const has = (read) => round.clients.some((c) => read(c) !== null && read(c) !== undefined);
  const hasRanks = has((c) => (c.rank === federation.plan.adapter.rank ? null : c.rank)); // clients differ from the plan under strategies with ranks of their own
  const hasFinal = has((c) => c.scores && c.scores.final), hasEpsilon = has((c) => c.epsilon), budget = federation.plan.signature.dp;
  const trainingBudget = federation.plan.privacy.training, hasTraining = has((c) => c.training_epsilon);
  const columns = [{ name: "client", few: true }, { name: "state", few: true, text: true }, { name: "received" }, { name: "up" }, { name: "down" }, { name: "norm" }, ...(hasRanks ? [{ name: "rank" }] : []), { name: "age" },
    ...(has((c) => c.progress) ? [{ name: "progress", few: true, text: true }] : []), ...(hasEpsilon ? [{ name: "epsilon spent" }] : []), ...(hasTraining ? [{ name: "training epsilon" }] : []), { name: "served", head: "loss served", few: true }, { name: "trained", head: "loss trained", few: true }, { name: "kept", text: true },
    ...(hasFinal ? [{ name: "final", head: "loss final", few: true }] : []), ...metrics.map((name) => ({ name: label(name) }))];
  const rows = [...round.clients].sort(byName).map((c) => [link(c.name, href.client(c.client_id)), state(shownState(c.state, round.state), c.reject_reason),
    c.received_at ? ago(c.received_at) : "–", size(c.bytes.up), size(c.bytes.down), number(c.norm), ...(hasRanks ? [c.rank === null ? "–" : String(c.rank)] : []), c.staleness === null ? "–" : String(c.staleness),
    ...(has((x) => x.progress) ? [progressOf(c)] : []), ...(hasEpsilon ? [c.epsilon === null ? "–" : `${number(c.epsilon)} of ${budget ? budget.epsilon : "?"}`] : []),
    ...(hasTraining ? [c.training_epsilon === null ? "–" : `${number(c.training_epsilon)} of ${trainingBudget ? trainingBudget.epsilon : "?"}`] : []),
    number(c.scores && value(c.scores.served, "loss")), number(c.scores && value(c.scores.trained, "loss")), keptName(c.scores),
    ...(hasFinal ? [number(c.scores && value(c.scores.final, "loss"))] : []), ...metrics.map((name) => number(value(personal(c.scores), name)))]);
  return [back(federation, ...steps),
    element("section", [element("h2", `Round ${round.round} of ${federation.plan.rounds.total}: ${round.state}`, { id: "headline" }),
      element("p", `Opened ${ago(round.opened_at)}${phases ? `; ${phases}` : ""}.${round.reason ? ` Reason: ${REASONS[round.reason] || round.reason}.` : ""}`, { class: "lead", id: "now" })], { id: "headline-part" }),
    element("section", facts(boxes), { id: "facts" }),
    ...(round.secure_sum ? [sumSection(round.secure_sum)] : []),
    section("clients", "Clients in this round", rows.length ? table("clients", `Clients in round ${round.round}`, columns, rows) : note("No client has joined."),
      note("served: the weights at the start of the round; trained: the adapter after the client's local steps; kept: which of them is the client's personal model.")),
  ];
}

// `views` are rounds with their clients, the newest first, as far as they are loaded.
export function clientSections({ federation, rounds, matrix, clientNames }, client, views, wanted) {
  const href = links(federation.id), profile = client.profile;
  const parts = views.map((view) => ({ view, part: view.clients.find((c) => c.client_id === client.client_id) })).filter(({ part }) => part);
  const scored = parts.filter(({ part }) => part.scores);
  const newest = scored[0], first = scored.at(-1);
  const packed = federation.plan.alignment ? "rounds and alignment packs" : "all rounds";
  const boxes = [[client.state, "state", `${client.identity === "key" ? "signs with a key" : "bearer credential"}`], [ago(lastSeen(client, parts[0] && parts[0].part)), "last seen", `enrolled ${ago(client.enrolled_at)}`],
    [String(client.rounds), "rounds with an update"], [size(client.bytes.up), "sent by the client", packed], [size(client.bytes.down), "sent to the client", packed]];
  if (newest) {
    const moved = difference(value(personal(newest.part.scores), "loss"), value(first.part.scores.served, "loss"));
    boxes.push([number(value(personal(newest.part.scores), "loss")), `loss in round ${newest.view.round}`, `${signed(moved)} since round ${first.view.round} began`]);
  }
  const points = (read) => scored.map(({ view, part }) => [view.round, value(read(part.scores), "loss")]).filter(([, loss]) => loss !== null).reverse();
  const lines = [{ name: "kept (its personal model)", style: "first", points: points(kept) }, { name: "served", style: "second", points: points((s) => s.served) }, { name: "trained", style: "third", points: points((s) => s.trained) }];
  const metrics = names(scored.map(({ part }) => personal(part.scores))).filter((name) => name !== "loss"), hasFinal = scored.some(({ part }) => part.scores.final);
  const columns = [{ name: "round", few: true }, { name: "state", few: true, text: true }, { name: "received" }, { name: "up" }, { name: "down" }, { name: "served", head: "loss served", few: true },
    { name: "trained", head: "loss trained", few: true }, { name: "kept", text: true }, ...(hasFinal ? [{ name: "final", head: "loss final", few: true }] : []), ...metrics.map((name) => ({ name: label(name) }))];
  const rows = parts.map(({ view, part: { scores, ...c } }) => [link(String(view.round), href.round(view.round)), state(shownState(c.state, view.state), c.reject_reason), c.received_at ? ago(c.received_at) : "–", size(c.bytes.up), size(c.bytes.down),
    number(scores && value(scores.served, "loss")), number(scores && value(scores.trained, "loss")), keptName(scores), ...(hasFinal ? [number(scores && value(scores.final, "loss"))] : []),
    ...metrics.map((name) => number(value(personal(scores), name)))]);
  const model = `${profile.architecture}, ${profile.layers} layers of width ${profile.hidden_size}; base model ${profile.base_model}; agent ${profile.agent_version}`;
  // With one other client, that one is drawn beside the client's own curves.
  const others = linesOf(views, "loss", (id) => clientNames[id] || id, client.client_id);
  if (others.length === 1 && lines[0].points.length) lines.push({ ...others[0], name: `${others[0].name} (its personal model)`, style: "fourth" });
  const among = others.length < 2 ? null : curves(views, "loss", (id) => clientNames[id] || id, [], client.client_id);
  const loading = views.length < wanted ? `Loaded ${views.length} of ${count(wanted, "round")} …` : rounds.length > wanted ? `The newest ${count(wanted, "round")}.` : "All rounds that the client joined.";
  return [back(federation),
    element("section", [element("h2", client.name, { id: "headline" }), element("p", `${client.organisation ? `${client.organisation}; ` : ""}${model}.`, { class: "lead", id: "now" })], { id: "headline-part" }),
    element("section", facts(boxes), { id: "facts" }),
    section("history", "Held-out loss by round (lower is better)", newest ? untrainedNote(value(personal(newest.part.scores), "loss"), value(first.part.scores.served, "loss")) : null, scored.length ? element("div", chart(`Held-out loss of ${client.name}`, "loss, nats per token", lines), { id: "curve" })
      : note("No scores of this client yet.", { class: "empty" })),
    ...(among ? [section("among", "Among the other clients", note("Losses of the personal models; this client, the best and the worst one are in front."), among.figure)] : []),
    voicesSection(matrix, client.client_id, (id) => clientNames[id] || id, href.client),
    section("rounds", "Its rounds", note(loading), rows.length ? table("rounds", `Rounds of ${client.name}`, columns, rows) : note("The client has not joined a round yet.")),
  ];
}
