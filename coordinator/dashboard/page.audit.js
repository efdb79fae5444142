// The audit log in words, with the names behind its ids.

import { code, element, link, note, section, table } from "./page.dom.js";

// What an actor did to a subject. A subject that is a client is named with its federation.
const DEEDS = {
  "federation-created": (who, what) => [who, " created ", what],
  "federation-started": (who, what) => [who, " started ", what],
  "federation-paused": (who, what) => [who, " paused ", what],
  "federation-finished": (who, what) => [who, " finished ", what],
  "federation-removed": (who, what, reason) => [who, " removed the federation ", element("b", reason)],
  "enrolment-token-made": (who, what) => [who, " made an enrolment token for ", what],
  "enrolment-token-ended": (who, what) => [who, " voided an enrolment token for ", what],
  "enrolment-refused": (who, what) => ["an enrolment as ", what, " with the token of ", who, " was refused"],
  "client-enrolled": (who, what) => [what, " enrolled"],
  "client-key-replaced": (who) => [who, " replaced its key"],
  "client-revoked": (who, what) => [who, " revoked ", what],
  "pack-stored": (who, what) => [who, " stored an alignment pack of ", what],
  "pack-deleted": (who, what) => [who, " deleted an alignment pack of ", what],
  "acceptance-set": (who, what) => [who, " stored the result of a pack's test in ", what],
  "anchors-set": (who, what) => [who, " stored the anchor texts of ", what],
  "person-token-made": (who, what) => [who, " made a token for ", what],
  "person-token-revoked": (who, what) => [who, " revoked the token of ", what],
  "person-signed-out": (who) => [who, " signed out"],
  "adapter-downloaded": (who, what) => [who, " downloaded the adapter of ", what],
  "sum-session-opened": (who, what) => ["a sum began in ", what],
  "sum-session-aborted": (who, what) => ["a sum was abandoned in ", what],
  "sum-session-done": (who, what) => ["a sum was made in ", what],
};
const ACTORS = { settings: "admin", coordinator: "the coordinator" }; // "settings" is who has TESSERA_ADMIN_TOKEN

function named(id, names) {
  const known = Object.hasOwn(names, id) ? names[id] : null;
  return element("b", known ? `${known.name}${known.federation ? ` in ${known.federation}` : ""}` : Object.hasOwn(ACTORS, id) ? ACTORS[id] : id, { title: id });
}

// An event that this page does not know is shown as the log has it.
function deed(entry, names) {
  const who = named(entry.actor, names), what = named(entry.subject, names);
  const words = Object.hasOwn(DEEDS, entry.event) ? DEEDS[entry.event](who, what, entry.reason) : [who, ` ${entry.event} `, what];
  return element("span", words, { class: "prose" });
}

const TIME = { day: "2-digit", month: "2-digit", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };

// The newest entries of the audit log, the last one first.
export function auditSections({ items, head, names }) {
  const columns = [{ name: "entry", few: true }, { name: "time", text: true, few: true }, { name: "what happened", few: true, text: true }, { name: "reason", text: true }, { name: "in the log", text: true }];
  const rows = [...items].reverse().map((entry) => [String(entry.number), element("time", new Date(entry.at).toLocaleString("en-GB", TIME), { datetime: entry.at }), deed(entry, names || {}), element("span", entry.reason || "–", { class: "prose" }),
    code(`${entry.event} ${entry.actor} ${entry.subject}`)]);
  return [element("nav", link("← All federations", "#"), { class: "back", id: "back", "aria-label": "Where you are" }), section("audit", "Audit log",
    head ? note(["The newest entries, in the time zone of this browser; each contains the hash of the one before. Names are those of today, or the last ones of removed federations; the log has the ids. ", code("tessera audit"), " checks the whole chain and the signature of its head."]) : note("No entry yet."),
    head ? table("audit", "Newest entries of the audit log", columns, rows) : null)];
}
