// The plan of a federation in words, with its JSON folded.

import { code, element, section } from "./page.dom.js";
import { count, span } from "./page.text.js";

export function adapterOf({ kind, rank, same_architecture_rank: beside }) {
  return kind === "lora" ? `LoRA of rank ${rank}` : `P and Q of rank ${rank}${beside ? `, and LoRA of rank ${beside} between clients of one base model` : ""}`;
}

function roundsOf({ total, min_clients: least, sample }) {
  const drawn = sample === null ? "" : ` For each, ${sample < 1 ? `a share of ${sample}` : sample} of the clients are drawn.`;
  return `${count(total, "round")}; each waits for ${count(least, "client")}.${drawn}`;
}

const deadlineOf = ({ collect_seconds: seconds, quorum }) => `${span(seconds)} after a round's start. It is published then if ${count(quorum, "update")} arrived, else abandoned.`;

const FALLS = { constant: "It is constant.", linear: "It falls linearly over all rounds.", cosine: "It falls as a cosine over all rounds." };
function rateOf({ learning_rate: rate, schedule, schedule_floor: floor }) {
  const ends = schedule === "constant" ? "" : floor ? ` It ends at ${floor} of its start.` : " It ends at zero.";
  return `${rate === "auto" ? "Each client searches for its own before its first round." : `${rate}.`} ${FALLS[schedule]}${ends}`;
}

function updatesOf({ secure_sum: summed }) {
  if (!summed) return "The coordinator sees each client's update.";
  return summed.masking === "none" ? "Summed without masks: the coordinator sees each update." : `Summed with masks: the coordinator sees sums of ${summed.minimum} members or more.`;
}

function privacyOf({ privacy, signature }) {
  const sketches = signature.dp ? `Gradient sketches have noise (epsilon ${signature.dp.epsilon}).` : privacy.secure_sum ? "" : "Gradient sketches have no noise.";
  const training = privacy.training ? `Training has noise (epsilon ${privacy.training.epsilon}).` : "Training has no noise.";
  const voices = privacy.secure_sum ? "" : `A mixture has ${count(privacy.min_voices, "other member")} or more.`;
  return [updatesOf(privacy), voices, sketches, training, privacy.allow_bearer_clients ? "Clients may enrol without a key." : ""].filter(Boolean).join(" ");
}

// The name and the sentence of a strategy, which begins with the method's usual spelling of the name.
function strategyOf(name, summary) {
  const [first] = /^[\w-]*/.exec(summary), letters = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");
  return letters(first) === letters(name) ? name + summary.slice(first.length) : `${name}. ${summary}`;
}

// Terms and what the plan says of each, as texts.
export function wordsOf(plan, known) {
  const usual = known ? known.plan.strategy.options : {}, options = Object.entries(plan.strategy.options).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(usual[name])).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ");
  const { adapter, rounds, training, alignment } = plan;
  return [
    ["Strategy", strategyOf(plan.strategy.name, known ? known.summary : "This coordinator does not have it any more.")],
    ...(options ? [["Other than usual", `${options}.`]] : []),
    ["Adapter", `${adapterOf(adapter)}, on ${adapter.roles.join(", ")}.`],
    ["Rounds", roundsOf(rounds)],
    ["Deadline", deadlineOf(rounds)],
    ["Training", `${count(training.steps, "step")} of ${count(training.batch_size, "text")} per client and round.`],
    ["Learning rate", rateOf(training)],
    ["Privacy", privacyOf(plan)],
    ["Base models", alignment ? `Several, aligned through the pivot ${alignment.pivot}.` : "Clients share with clients of the same base model."],
  ];
}

export function planSection({ plan }, strategies) {
  const known = strategies.find(({ name }) => name === plan.strategy.name);
  const words = wordsOf(plan, known);
  return section("plan", "Plan",
    element("dl", words.flatMap(([name, text]) => [element("dt", name), element("dd", text)]), { class: "terms" }),
    element("details", [element("summary", "The whole plan, as JSON"), element("pre", code(JSON.stringify(plan, null, 2)), { tabindex: "0", "aria-label": "The whole plan, as JSON" })], { id: "plan-all" }));
}
