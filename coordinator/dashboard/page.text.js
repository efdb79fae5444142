// The format of values, and the definitions of the terms on the page.

export const TERMS = {
  client: "An enrolled agent of one organisation.",
  served: "Held-out loss of the weights that the round began with: the mixture that the coordinator made for this client.",
  trained: "Held-out loss of the client's adapter after the local steps of the round.",
  kept: "The weights that the client keeps as its personal model: as served, or as trained.",
  final: "Held-out loss of the final weights; clients send it once the federation is finished.",
  "by mixing": "Loss of the weights served in a round minus loss of the adapter that the client itself had trained in the round before, on the same examples, ± one standard error. Negative: the other clients' updates helped. A change of less than two errors is noise. Declined: the served weights were worse on the client's validation examples, and it trained on from its own.",
  "since start": "Loss of the personal model minus loss of the weights served in the first scored round. Negative: the federation has improved it.",
  personal: "Loss of the personal model: of the final weights, or of the kept weights before the end.",
  up: "Bytes of bodies that clients sent.",
  down: "Bytes of bodies that clients received.",
  rank: "Rank of the update's A and B. Under HetLoRA and FLoRA each client has its own, up to the plan's.",
  norm: "L2 norm of the update, over all its tensors.",
  age: "Rounds since the client's newest update; an older update counts for less.",
  "epsilon spent": "Privacy budget that the client's sketches have used, of the budget in the plan.",
  "training epsilon": "Privacy budget that the client's training has used, of the budget in the plan.",
  received: "Time at which the coordinator accepted the update.",
  "last seen": "Time of the client's last request, recorded every 15 seconds.",
  updates: "Accepted updates, and the number of clients that joined the round.",
  "used by": "Members that used the expert in the newest summed round, by the sum of their counts; a member may use several experts.",
  prior: "Share of the prior over active experts, from the sums of the clients' responsibilities.",
  utilisation: "Moving average of the share of members that use the expert.",
  revision: "Last round that changed the expert's values.",
  loss: "Mean negative log-likelihood per answer token on held-out examples, in nats; lower is better.",
  perplexity: "Exponential of the loss; lower is better.",
  "exact match": "Share of held-out answers that equal a reference; higher is better.",
  f1: "Overlap of words between answer and reference, 0 to 1; higher is better.",
  "rouge l": "Longest common subsequence of answer and reference, 0 to 1; higher is better.",
  "option accuracy": "Share of questions whose right option is the likeliest; higher is better.",
  number: "Share of answers with the right number; higher is better.",
};

const LOWER_IS_BETTER = ["loss", "perplexity"];
export const isLowerBetter = (name) => LOWER_IS_BETTER.includes(name);
export const label = (name) => name.replaceAll("_", " ");
export const meaning = (name) => TERMS[label(name)] || "A score of the clients' own, 0 to 1; higher is better.";

export const number = (value) => {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1000 ? Number(value.toPrecision(4)).toLocaleString("en") : value.toFixed(3);
};
export const signed = (value) => {
  if (value === null || value === undefined) return "–";
  const digits = Math.abs(value).toFixed(3);
  return `${Number(digits) === 0 ? "±" : value > 0 ? "+" : "−"}${digits}`;
};
// A client that joined a round which has ended can send no update any more.
export const shownState = (state, round) => (state === "joined" && ["published", "abandoned"].includes(round) ? "no update" : state);
export const count = (many, noun) => `${many} ${noun}${many === 1 ? "" : "s"}`;

// The same units as the command line.
export function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export function span(seconds) {
  for (const [unit, base] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * base) return `${Math.round(seconds / base)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

export const ago = (text) => (text ? `${span(Math.max(0, (Date.now() - new Date(text)) / 1000))} ago` : "never");
// The time of a client's last sign of life: requests are recorded in intervals, what a round has of it at once.
export const lastSeen = (client, part) => [client.last_seen_at, ...(part ? [part.joined_at, part.received_at, part.progress && part.progress.at] : [])].filter(Boolean)
  .sort((a, b) => Date.parse(b) - Date.parse(a))[0] || null;
export const secondsUntil = (text) => (new Date(text) - Date.now()) / 1000;

// Loss and perplexity lead; then the other names that occur, in order.
export function names(sets) {
  const all = new Set(sets.filter(Boolean).flatMap((scores) => Object.keys(scores)));
  return [...LOWER_IS_BETTER.filter((name) => all.delete(name)), ...[...all].sort()];
}

export const value = (scores, name) => (scores && scores[name] ? scores[name].value : null);
export const kept = (scores) => scores && scores[scores.kept];
// The name of the client's personal model: "final" once the client has kept the final weights.
export const keptName = (scores) => (!scores ? "–" : scores.final && scores.final_kept ? "final" : scores.kept);
export const personal = (scores) => scores && ((scores.final_kept && scores.final) || kept(scores));
export const difference = (a, b) => (a === null || b === null || a === undefined || b === undefined ? null : a - b);
// "good" or "bad" if a change of loss exceeds twice its standard error, else "".
export const verdict = (change) => (!change || Math.abs(change.value) < 2 * change.error || !change.value ? "" : change.value < 0 ? "good" : "bad");
// The mean change of several clients, whose examples are independent.
export const meanChange = (changes) => ({ value: mean(changes.map((x) => x.value)), error: Math.sqrt(changes.reduce((sum, x) => sum + x.error ** 2, 0)) / changes.length });
export const UNTRAINED = 8; // nats per token; a guess among 3,000 tokens costs as much
export const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

export const REASONS = {
  "too-few-updates": "fewer updates than the quorum had arrived at the deadline; the coordinator opens the next round",
  finished: "the federation was finished before the round was published",
  "aggregation-failed": "aggregation failed; read the coordinator's log",
  "pack-ended": "an alignment pack was replaced; the coordinator opens the next round",
  "too-few-members": "fewer clients were ready than a sum needs; the coordinator opens the next round",
  "secure-sum-failed": "too few clients took part in the sum; the federation is paused",
  "sum-out-of-range": "the sum has impossible values, because a client sent a wrong input; the federation is paused",
};
