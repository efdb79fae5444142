// The dialog of a new federation. Its fields begin with the recommended plan of the strategy, which the coordinator names.

import { at, code, element, note } from "./page.dom.js";
import { Faults, ask, field, group } from "./page.dialog.js";

const MINUTE = 60;
// How a field is read from a plan, and written into one: [field, path in the plan, read, write]. An empty field is not sent.
const text = (value) => (value === null || value === undefined ? "" : String(value));
const FIELDS = [
  ["name", "name", text, (value) => value.trim()],
  ["strategy", "strategy.name", text, (value) => value],
  ["rounds", "rounds.total", text, Number],
  ["members", "rounds.min_clients", text, Number],
  ["quorum", "rounds.quorum", text, Number],
  ["deadline", "rounds.collect_seconds", (value) => text(Number((value / MINUTE).toFixed(3))), (value) => Number(value) * MINUTE],
  ["steps", "training.steps", text, Number],
  ["rate", "training.learning_rate", (value) => (value === "auto" ? "" : text(value)), Number],
  ["schedule", "training.schedule", text, (value) => value],
  ["sums", "privacy.secure_sum", (value) => (value ? value.masking : "none-at-all"), (value) => (value === "none-at-all" ? null : { masking: value })],
  ["voices", "privacy.min_voices", text, Number],
  ["sketches", "signature.dp.epsilon", text, Number],
  ["private", "privacy.training.epsilon", text, Number],
];
// Fields that are filled in for a strategy until somebody edits them.
const FOLLOWING = FIELDS.filter(([name]) => !["name", "strategy", "quorum"].includes(name));

const read = (plan, path) => path.split(".").reduce((part, key) => (part === null || part === undefined ? part : part[key]), plan);

function put(plan, path, value) {
  const keys = path.split("."), last = keys.pop();
  const part = keys.reduce((inner, key) => (inner[key] ??= {}), plan);
  part[last] = value;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// Add the members of `more` to `plan`; returns the paths that both have.
function merge(plan, more, under = "") {
  const twice = [];
  for (const [key, value] of Object.entries(more)) {
    const path = `${under}${key}`;
    if (!Object.hasOwn(plan, key)) plan[key] = value;
    else if (isObject(plan[key]) && isObject(value)) twice.push(...merge(plan[key], value, `${path}.`));
    else twice.push(path);
  }
  return twice;
}

function parsed(more) {
  let plan;
  try {
    plan = more.trim() ? JSON.parse(more) : {};
  } catch (error) {
    throw new Faults([["more", `This is not JSON: ${error.message}`]]);
  }
  if (!isObject(plan)) throw new Faults([["more", 'Enter a JSON object, such as {"adapter": {"rank": 8}}.']]);
  return plan;
}

function planOf(fields) {
  const plan = {};
  for (const [name, path, , write] of FIELDS) if (fields[name] !== "") put(plan, path, write(fields[name]));
  const twice = merge(plan, parsed(fields.more));
  if (twice.length) throw new Faults([["more", `${twice.join(", ")}: set above; leave it out here`]]);
  return plan;
}

// The field of the dialog that a path of the plan belongs to.
function fieldOf(path) {
  const found = FIELDS.filter(([, place]) => path === place || path.startsWith(`${place}.`)).sort((a, b) => b[1].length - a[1].length)[0];
  return found ? found[0] : { "privacy.training": "private", "signature.dp": "sketches" }[path] || "more";
}

const placed = ({ field: path, message }) => { const name = fieldOf(path || ""); return [name, name === "more" && path ? `${path}: ${message}` : message]; };

// The fields that the coordinator refuses; null for another error.
function faultsOf({ problem, message }) {
  if (!problem) return null;
  if (problem.type === "urn:tessera:problem:name-looks-alike") return new Faults([["name", message]]);
  if (problem.errors) return new Faults(problem.errors.map(placed));
  return problem.field ? new Faults([placed({ field: problem.field, message: message.replace(`${problem.field}: `, "") })]) : null;
}

// Fill in the recommended plan of the chosen strategy, and explain the strategy.
function followStrategy(strategies) {
  const chosen = () => strategies.find(({ name }) => name === at("field-strategy").value) || { summary: "", plan: null };
  const filled = new Map();
  const fill = () => {
    const { summary, plan } = chosen();
    at("help-strategy").textContent = summary;
    at("whole-plan").textContent = JSON.stringify(plan, null, 2);
    for (const [name, path, show] of plan ? FOLLOWING : []) {
      const control = at(`field-${name}`);
      if (filled.has(name) && control.value !== filled.get(name)) continue;
      control.value = show(read(plan, path));
      filled.set(name, control.value);
    }
  };
  at("field-strategy").addEventListener("input", fill);
  fill();
  return chosen;
}

export function askToCreate(post, open, strategies) {
  const number = (least, more = {}) => ({ type: "number", min: String(least), ...more });
  let chosen = null;
  ask({
    title: "New federation", confirm: "Create",
    content: [
      field("name", "Name", { required: "", maxlength: "64" }),
      field("strategy", "Strategy", { options: strategies.map(({ name }) => [name, name]) }, " "),
      group("Rounds",
        field("rounds", "Rounds", number(1, { required: "" })),
        field("members", "Clients that a round needs", number(1, { required: "" })),
        field("deadline", "Deadline of a round, in minutes", number(0, { required: "", step: "any" }), "From the start of a round. Then it is published, or abandoned."),
        field("quorum", "Updates that suffice at the deadline", number(1), "Empty: as many as a round needs clients.")),
      group("Training",
        field("steps", "Steps of a client in a round", number(1, { required: "" })),
        field("rate", "Learning rate", number(0, { step: "any" }), "Empty: each client searches for its own before its first round."),
        field("schedule", "Learning rate over the rounds", { options: [["linear", "falls linearly to zero"], ["cosine", "falls to zero as a cosine"], ["constant", "constant"]] })),
      group("Privacy",
        field("sums", "Updates", { options: [["none-at-all", "sent one by one"], ["pairwise", "summed with masks"], ["none", "summed without masks"]] }, "With masks the coordinator sees sums only, otherwise each update."),
        field("voices", "Other members that a mixture needs", number(1, { required: "" }), "With 1, a member with one peer can compute that peer's adapter."),
        field("sketches", "Epsilon of the gradient sketches", number(0.01, { max: "10", step: "any" }), "Empty: no noise; the operator can reconstruct text from sketches."),
        field("private", "Epsilon of the training", number(0.01, { max: "10", step: "any" }), "Empty: no noise. Needs a learning rate, and an epsilon of the sketches or sums.")),
      element("details", [element("summary", "Other fields of the plan, as JSON"),
        field("more", "Other fields", { rows: "4", placeholder: '{"adapter": {"rank": 8}}' }),
        note("Fields that are empty here and above get the values recommended for the strategy with one base model:"),
        element("pre", code(""), { id: "whole-plan", tabindex: "0", "aria-label": "The recommended plan" })], { id: "more-all" }),
      note("A plan cannot be changed after its federation has been created."),
    ],
    check: ({ more }) => { try { parsed(more); } catch (error) { return error.faults; } return []; },
    act: async (fields) => {
      try {
        open((await post("/v1/federations?recommended=true", planOf(fields))).id);
      } catch (error) {
        throw faultsOf(error) || error;
      }
    },
  });
  const usual = strategies.find(({ name }) => name === "fedmosaic");
  if (usual) at("field-strategy").value = usual.name;
  chosen = followStrategy(strategies);
}
