// The bank of experts of a summed federation: its experts, and why it changed.

import { element, note, section, table } from "./page.dom.js";
import { count, number, size } from "./page.text.js";
import { state } from "./page.views.js";

const status = (expert) => (expert.merged_into === null ? state(expert.status) : state(`merged into ${expert.merged_into}`));

function users(last, expert) {
  const many = last ? last.users[expert.expert] : undefined;
  return many === undefined ? "–" : `${many} of ${last.members} (${Math.round((100 * many) / last.members)} %)`;
}

// `bank` has all experts, and the newest rounds that were summed, with their changes.
export function expertsSection({ experts, rounds, events, next }, { masking }) {
  const last = rounds[0], active = experts.filter((expert) => expert.status === "active").length;
  const columns = [{ name: "expert", few: true }, { name: "status", few: true, text: true }, { name: "used by", few: true }, { name: "prior", few: true },
    { name: "utilisation" }, { name: "born" }, { name: "ended" }, { name: "revision" }, { name: "download" }];
  const rows = experts.map((e) => [String(e.expert), status(e), users(last, e), number(e.prior), number(e.utilisation), String(e.born), e.ended === null ? "–" : String(e.ended),
    e.revision ? String(e.revision) : "–", e.revision ? size(e.bytes) : "–"]);
  const counted = last ? ` In round ${last.round}, ${last.rejects} of ${count(last.members, "member")} reject all experts.` : " No round was summed yet.";
  const changes = events.map((e) => [String(e.round), element("span", [element("b", `expert ${e.expert} ${e.change}`), `: ${e.reason}`], { class: "prose" })]);
  const choice = masking === "none" ? "Each client chooses experts itself; without masks the coordinator can see the choice." : "Clients choose experts in private: the coordinator knows how many members use an expert, not which.";
  return section("experts", "Experts",
    note(`${count(active, "active specialist")}. ${choice}${counted}`),
    table("experts", "Experts of the bank", columns, rows),
    ...(changes.length ? [element("h3", "Changes"), table("expert-changes", "Births, pruned and merged experts", [{ name: "round", few: true }, { name: "change", few: true, text: true }], changes)] : []),
    next === null ? null : note(`The changes of the newest ${count(rounds.length, "round")}; the command tessera experts shows all.`));
}
