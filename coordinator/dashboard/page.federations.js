// All federations: state, round, and whom each waits for.

import { mayAct } from "./page.actions.js";
import { element, link, table } from "./page.dom.js";
import { count, secondsUntil, span } from "./page.text.js";
import { byName, links, missing, state } from "./page.views.js";

const NAMED = 3; // so many clients are named
const ORDER = ["running", "paused", "open", "finished"];

function named(fid, clients, why) {
  const shown = clients.slice(0, NAMED).flatMap((client, i) => [i ? ", " : "", link(client.name, links(fid).client(client.client_id)), why(client) ? ` (${why(client)})` : ""]);
  return clients.length > NAMED ? [...shown, ` and ${clients.length - NAMED} more`] : shown;
}

// Clients with updates in fewer rounds than others, but for one that may be under way.
function behind(clients) {
  const most = Math.max(0, ...clients.map((client) => client.rounds));
  return clients.filter((client) => client.state === "enrolled" && client.rounds < most - 1).sort(byName);
}

function waits(federation, known) {
  const { enrolled } = federation.clients, { min_clients: least } = federation.plan.rounds;
  const few = enrolled < least ? [`${enrolled} of the ${count(least, "client")} that a round needs ${enrolled === 1 ? "is" : "are"} enrolled. `] : [];
  if (federation.state === "finished") return ["Finished."];
  if (federation.state === "open") return few.length ? few : [`${count(enrolled, "client")} enrolled; it can be started.`];
  const paused = federation.state === "paused" ? ["No further round opens until it is resumed. "] : [];
  if (!known || !known.current) return [...paused, ...few, few.length ? "" : "–"];
  const { current, clients } = known, late = missing(known), slow = behind(clients).filter((client) => !late.some((other) => other.client_id === client.client_id));
  const left = current.state === "collecting" ? secondsUntil(current.deadline) : null;
  return [...paused, ...few, ...(late.length ? [element("b", "Waiting for ", { class: "wait" }), ...named(federation.id, late, (client) => client.why), ". "] : ["Nobody is missing. "]),
    ...(slow.length ? [element("b", "Behind: ", { class: "wait" }), ...named(federation.id, slow, (client) => count(client.rounds, "round")), ". "] : []),
    left === null ? "" : left > 0 ? `The round closes in ${span(left)}.` : "The deadline has passed."];
}

// `details` has by id the current round and the clients of federations that run.
export function federationsSection(federations, details) {
  const ordered = [...federations].reverse().sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
  const columns = [{ name: "federation", few: true }, { name: "state", text: true }, { name: "round", few: true }, { name: "clients" }, { name: "now", few: true, text: true }];
  const rows = ordered.map((f) => [link(f.name, links(f.id).home), state(f.state === "open" ? "not started" : f.state), f.round ? `${f.round.number} of ${f.plan.rounds.total}` : `– of ${f.plan.rounds.total}`,
    String(f.clients.enrolled), element("span", waits(f, details.get(f.id)), { class: "prose" })]);
  const running = federations.filter((f) => f.state === "running").length;
  return element("section", [element("h2", `${count(federations.length, "federation")}, ${running} running`, { id: "headline" }), table("federations", "Federations", columns, rows)], { id: "federations-part" });
}

export function noFederation() {
  const advice = mayAct() ? ["Create one with New federation above, or with ", element("code", "tessera federation create --name NAME --strategy fedmosaic --rounds 10"), "."]
    : ["An operator creates federations; this page shows a new one at once."];
  return element("section", [element("h2", "No federation yet", { id: "headline" }), element("p", advice, { id: "now" })], { id: "empty-part" });
}
