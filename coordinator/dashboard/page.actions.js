// Actions of operators: create, start, pause, finish, enrol, revoke. Each action is confirmed in a dialog that names its
// consequences. Requests carry the token in a header, which no other origin can send, and nothing secret is in an address.

import { roleIn } from "./page.api.js";
import { at, code, element, note, section, table } from "./page.dom.js";
import { count } from "./page.text.js";

export const mayAct = (fid) => ["operator", "admin"].includes(roleIn(fid));

const button = (text, action) => element("button", text, { type: "button", "data-action": action, id: `do-${action}` });

// Buttons for what the federation's state allows.
export function actionsSection({ state }) {
  const buttons = {
    open: [button("Start", "start"), button("Enrol a client", "enrol")],
    running: [button("Pause", "pause"), button("Enrol a client", "enrol"), button("Finish", "finish")],
    paused: [button("Resume", "start"), button("Enrol a client", "enrol"), button("Finish", "finish")],
  }[state];
  return buttons ? element("section", buttons, { id: "actions-part", class: "actions", role: "group", "aria-label": "Actions" }) : null;
}

export const clientActions = (client, fid) =>
  (client.state === "enrolled" && roleIn(fid) === "admin" ? element("section", button("Revoke", "revoke"), { id: "actions-part", class: "actions" }) : null);

function field(name, label, attributes = {}, help = null) {
  const control = element(attributes.rows ? "textarea" : "input", "", { id: `field-${name}`, name, autocomplete: "off", spellcheck: "false", ...attributes });
  if (help) control.setAttribute("aria-describedby", `help-${name}`);
  return element("div", [element("label", label, { for: `field-${name}` }), control, help ? note(help, { id: `help-${name}` }) : null], { class: "field" });
}

// Open the dialog. `act` gets the entered fields; what it returns replaces the form, and nothing closes the dialog.
function ask({ title, content, confirm, danger = false, act }) {
  const dialog = at("dialog"), alert = element("p", "", { role: "alert", class: "bad" });
  const send = element("button", confirm, danger ? { class: "danger" } : {}), cancel = element("button", "Cancel", { type: "button" });
  const form = element("form", [element("h2", title, { id: "dialog-title" }), ...content, alert, element("div", [send, cancel], { class: "buttons" })]);
  cancel.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    alert.textContent = "";
    try {
      const result = await act(Object.fromEntries(new FormData(form)));
      if (!result) return dialog.close();
      dialog.replaceChildren(...result);
      dialog.querySelector("button").focus(); // the button that was pressed is gone
    } catch (error) {
      alert.textContent = error.message;
      send.disabled = false;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
}

const typed = (name) => field("typed", `Type ${name} to confirm`, { required: "" });

function requireTyped(fields, name) {
  if (fields.typed !== name) throw new Error(`Type ${name} exactly as shown.`);
}

function result(title, content) {
  const close = element("button", "Close", { type: "button" });
  close.addEventListener("click", () => at("dialog").close());
  return [element("h2", title, { id: "dialog-title" }), ...content, element("div", close, { class: "buttons" })];
}

function copyable(id, label, text) {
  const shown = element("input", "", { id, readonly: "", value: text }), copy = element("button", "Copy", { type: "button" });
  copy.addEventListener("click", async () => {
    shown.select();
    // Browsers have no clipboard object on plain http:// of another machine.
    const isCopied = navigator.clipboard ? await navigator.clipboard.writeText(text).then(() => true, () => false) : document.execCommand("copy");
    copy.textContent = isCopied ? "Copied" : "Press Ctrl+C";
    if (isCopied) copy.focus(); // selecting has moved it
  });
  return element("div", [element("label", label, { for: id }), element("div", [shown, copy], { class: "copyable" })], { class: "field" });
}

function planOf({ name, strategy, rounds, members, more }) {
  let plan = {};
  try {
    plan = more.trim() ? JSON.parse(more) : {};
  } catch (error) {
    throw new Error(`The plan is not JSON: ${error.message}`);
  }
  if (plan === null || typeof plan !== "object" || Array.isArray(plan)) throw new Error('The plan must be a JSON object, such as {"training": {"steps": 20}}.');
  return { ...plan, name, strategy: { ...plan.strategy, name: strategy }, rounds: { ...plan.rounds, total: Number(rounds), min_clients: Number(members) } };
}

// What is recommended for a strategy, as the text of the plan's field: a line for each part.
function recommendedFor(strategy) {
  const option = [...at("strategies").children].find(({ value }) => value === strategy), plan = option ? JSON.parse(option.dataset.plan) : {};
  const lines = Object.entries(plan).filter(([part]) => !["strategy", "rounds"].includes(part)).map(([part, members]) => `  ${JSON.stringify(part)}: ${JSON.stringify(members)}`);
  return { text: lines.length ? `{\n${lines.join(",\n")}\n}` : "", members: plan.rounds ? plan.rounds.min_clients : 0 };
}

// Fill in what is recommended; another strategy replaces it unless it was edited.
function followStrategy() {
  const strategy = at("field-strategy"), more = at("field-more"), members = at("field-members");
  let filled = "";
  const fill = () => {
    const { text, members: least } = recommendedFor(strategy.value);
    if (more.value === filled) more.value = filled = text;
    members.value = String(Math.max(Number(members.value), least));
  };
  strategy.addEventListener("input", fill);
  fill();
}

export function askToCreate(post, open) {
  ask({
    title: "New federation", confirm: "Create",
    content: [field("name", "Name", { required: "", maxlength: "64" }), field("strategy", "Strategy", { required: "", list: "strategies", value: "fedmosaic" }),
      field("rounds", "Rounds", { type: "number", min: "1", required: "", value: "10" }), field("members", "Clients that a round needs", { type: "number", min: "1", required: "", value: "2" }),
      field("more", "More of the plan, as JSON (optional)", { rows: "6", placeholder: '{"training": {"steps": 20}}' }, "Filled in with the recommended fields for the strategy and one base model. The fields are those of the plan that tessera federation create --plan reads, and all have defaults. A plan cannot be changed after its federation has been created.")],
    act: async (fields) => { open((await post("/v1/federations", planOf(fields))).id); },
  });
  followStrategy();
}

const STEPS = {
  start: ({ state, plan }) => (state === "paused" ? ["Resume", "The next round opens when the current round has ended."]
    : ["Start", `Round 1 opens; it begins once ${count(plan.rounds.min_clients, "client")} have joined.`]),
  pause: () => ["Pause", "The current round completes; no further round opens until the federation is resumed."],
  finish: () => ["Finish", "The current round is abandoned, and no further round opens. Agents fetch their final weights. This cannot be undone."],
};

export function askToMove(post, federation, step) {
  const [confirm, text] = STEPS[step](federation), danger = step === "finish";
  ask({
    title: `${confirm} ${federation.name}?`, confirm, danger, content: [element("p", text), ...(danger ? [typed(federation.name)] : [])],
    act: async (fields) => {
      if (danger) requireTyped(fields, federation.name);
      await post(`/v1/federations/${encodeURIComponent(federation.id)}/${step}`);
    },
  });
}

export function askToEnrol(post, federation) {
  ask({
    title: `Enrol a client in ${federation.name}`, confirm: "Make a token",
    content: [field("name", "Name of the client", { required: "", maxlength: "64" }),
      field("organisation", "Organisation (optional)", { maxlength: "64" }, "Clients of one organisation count once in a secure sum, and as one voice for the guard."),
      element("label", [element("input", "", { type: "checkbox", name: "replace", value: "yes" }), " Replace an unused token of this name"])],
    act: async ({ name, organisation, replace }) => {
      const request = { client_name: name.trim(), ...(organisation.trim() ? { organisation: organisation.trim() } : {}), replace: replace === "yes" };
      const { token, expires_at: expires } = await post(`/v1/federations/${encodeURIComponent(federation.id)}/enrolment-tokens`, request);
      return result(`Token for ${request.client_name}`, [
        element("p", ["This page shows the token only now. It can be used once, until ", new Date(expires).toLocaleString("en-GB"), ". Send it over a channel that you trust: the first agent that redeems it becomes the client."]),
        copyable("enrolment-token", "Token", token),
        element("p", ["The silo redeems the token with ", code(`tessera agent enrol --config silo.toml --name ${request.client_name} --token -`), ", which reads it from standard input."])]);
    },
  });
}

export function askToRevoke(remove, federation, client) {
  ask({
    title: `Revoke ${client.name}?`, confirm: "Revoke", danger: true,
    content: [element("p", "The coordinator refuses the client's key at once. Updates that were accepted before still count. The silo can return only as a new client under another name. Alignment packs that the client stored are deleted, and a round whose updates need them is abandoned. This cannot be undone."), typed(client.name)],
    act: async (fields) => {
      requireTyped(fields, client.name);
      await remove(`/v1/federations/${encodeURIComponent(federation.id)}/clients/${encodeURIComponent(client.client_id)}`);
    },
  });
}

// The newest entries of the audit log, the last one first.
export function auditSection({ items, head }) {
  const columns = [{ name: "entry", few: true }, { name: "time", text: true }, { name: "event", few: true, text: true }, { name: "actor", text: true }, { name: "subject", few: true, text: true }, { name: "reason", text: true }];
  const rows = [...items].reverse().map((entry) => [String(entry.number), new Date(entry.at).toLocaleString("en-GB"), entry.event, entry.actor, entry.subject, entry.reason || "–"]);
  return section("audit", "Audit log",
    head ? note(["The newest entries; each contains the hash of the one before. ", code("tessera audit"), " checks the whole chain and the signature of its head."]) : note("No entry yet."),
    head ? table("audit", "Newest entries of the audit log", columns, rows) : null);
}
