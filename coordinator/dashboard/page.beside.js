// Two federations side by side: the facts that differ, and the mean loss by round.

import { chart, element, link, note, section, table } from "./page.dom.js";
import { number, size, value } from "./page.text.js";
import { links } from "./page.views.js";

const meanLoss = (round) => value(round.scores && round.scores.mean, "loss");
const STYLES = ["first", "second"];

// `rounds` come newest first.
function column({ federation, rounds }) {
  const scored = rounds.filter((round) => meanLoss(round) !== null), { plan } = federation, bytes = (way) => size(rounds.reduce((sum, round) => sum + round.bytes[way], 0));
  return [federation.state, plan.strategy.name, `${plan.adapter.kind}, rank ${plan.adapter.rank}`, String(federation.clients.enrolled), `${rounds.length} of ${plan.rounds.total}`,
    number(scored.length ? meanLoss(scored.at(-1)) : null), number(scored.length ? meanLoss(scored[0]) : null), number(scored.length ? value(scored[0].scores.worst, "loss") : null), bytes("up"), bytes("down")];
}

const NAMES = ["state", "strategy", "adapter", "clients enrolled", "rounds", "first mean loss", "newest mean loss", "newest worst loss", "sent by clients", "sent to clients"];

export function besideSection(data, second) {
  const pair = [{ federation: data.federation, rounds: data.rounds }, second], columns = pair.map(column);
  const title = pair.map(({ federation }) => federation.name).join(" beside ");
  const lines = pair.map(({ federation, rounds }, i) => ({ name: pair[0].federation.name === pair[1].federation.name ? `${federation.name}, ${federation.id}` : federation.name, style: STYLES[i],
    points: rounds.filter((round) => meanLoss(round) !== null).map((round) => [round.round, meanLoss(round)]).reverse() })).filter((line) => line.points.length);
  const heads = [{ name: "fact", few: true, head: " " }, ...pair.map(({ federation }) => ({ name: federation.id, few: true, text: true, head: link(federation.name, links(federation.id).home) }))];
  return element("section", [element("h2", title, { id: "headline" }),
    note(`Mean held-out loss of the personal models, by round. Losses compare only where both federations have the same clients and data.${data.isComplete ? "" : " Earlier rounds of the first are being loaded."}`),
    lines.length ? element("div", chart("Mean held-out loss", "loss, nats per token", lines), { id: "curve" }) : note("Neither has scores yet.", { class: "empty" }),
    table("beside-facts", `Facts of ${title}`, heads, NAMES.map((name, i) => [name, columns[0][i], columns[1][i]]))], { id: "beside-part" });
}
