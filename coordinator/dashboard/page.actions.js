// Actions of operators: start, pause, finish, remove, enrol, revoke. Each action is confirmed in a dialog that names its
// consequences. Requests carry the token in a header, which no other origin can send, and no request has a secret in its address.

import { ROOT, roleIn } from "./page.api.js";
import { Faults, ask, copyable, field, requireTyped, result, typed } from "./page.dialog.js";
import { element } from "./page.dom.js";
import { count } from "./page.text.js";

export const mayAct = (fid) => ["operator", "admin"].includes(roleIn(fid));

const button = (text, action, more = {}) => element("button", text, { type: "button", "data-action": action, id: `do-${action}`, ...more });

// Buttons for what the federation's state allows.
export function actionsSection({ id, state }) {
  const finish = button("Finish", "finish", { class: "danger" });
  const removal = roleIn(id) === "admin" ? [button("Remove", "remove", { class: "danger" })] : [];
  const buttons = {
    open: [button("Start", "start"), button("Enrol a client", "enrol"), ...removal],
    running: [button("Pause", "pause"), button("Enrol a client", "enrol"), finish],
    paused: [button("Resume", "start"), button("Enrol a client", "enrol"), finish],
  }[state];
  return buttons ? element("section", buttons, { id: "actions-part", class: "actions", role: "group", "aria-label": "Actions" }) : null;
}

export const clientActions = (client, fid) =>
  (client.state === "enrolled" && roleIn(fid) === "admin" ? element("section", button("Revoke", "revoke", { class: "danger" }), { id: "actions-part", class: "actions" }) : null);

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

export function askToRemove(remove, federation, leave) {
  const { enrolled } = federation.clients;
  ask({
    title: `Remove ${federation.name}?`, confirm: "Remove", danger: true,
    content: [element("p", `The federation was never started. Its plan, its ${count(enrolled, "client")}, enrolment tokens, anchor texts and alignment packs are deleted; the audit log keeps its entries. This cannot be undone.`), typed(federation.name)],
    act: async (fields) => {
      requireTyped(fields, federation.name);
      await remove(`/v1/federations/${encodeURIComponent(federation.id)}`);
      leave(federation.id);
    },
  });
}

// One argument of a shell command.
const quoted = (text) => (/^[\w.:/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// What the silo's engineer types, in a file that can be sent as it is.
function linesFor(name, token) {
  return [
    "# Once, in a clone of Tessera: install it.",
    "pip install '.[agent]'",
    "# Once: write silo.toml, and name your model and data.",
    `tessera agent init --url ${quoted(location.origin + ROOT)} --model MODEL --train DATA.jsonl`,
    "# Check model, data and connection.",
    "tessera agent check --config silo.toml",
    "# Enrol: the token works once, and is read from standard input.",
    `echo ${quoted(token)} | tessera agent enrol --config silo.toml --name ${quoted(name)} --token -`,
    "# Take part in the rounds.",
    "tessera agent run --config silo.toml",
  ].join("\n");
}

// A name that only an unused token has can be given again.
function faultOfName({ problem, message }, tokens) {
  if (!problem || problem.type !== "urn:tessera:problem:client-name-taken") return null;
  const isUnused = tokens.some((token) => token.client_name === problem.taken);
  return new Faults([["name", `${message.split(";")[0]}. Choose another${isUnused ? ", or tick “Replace an unused token of this name”" : ""}.`]]);
}

export function askToEnrol(post, federation, tokens) {
  ask({
    title: `Enrol a client in ${federation.name}`, confirm: "Make a token",
    content: [field("name", "Name of the client", { required: "", maxlength: "64" }),
      field("organisation", "Organisation (optional)", { maxlength: "64" }, "Clients of one organisation count once in a secure sum, and as one voice for the guard."),
      element("label", [element("input", "", { type: "checkbox", name: "replace", value: "yes" }), " Replace an unused token of this name"])],
    act: async ({ name, organisation, replace }) => {
      const request = { client_name: name.trim(), ...(organisation.trim() ? { organisation: organisation.trim() } : {}), replace: replace === "yes" };
      const { token, expires_at: expires } = await post(`/v1/federations/${encodeURIComponent(federation.id)}/enrolment-tokens`, request)
        .catch((error) => { throw faultOfName(error, tokens) || error; });
      return result(`Token for ${request.client_name}`, [
        element("p", ["This page shows the token only now. It can be used once, until ", new Date(expires).toLocaleString("en-GB", { timeZoneName: "short" }), ". Send it over a channel that you trust: the first agent that redeems it becomes the client."]),
        copyable("enrolment-lines", "Lines for the silo", linesFor(request.client_name, token), 14),
        copyable("enrolment-token", "Token alone", token)], "This page cannot show the token again. Press Close once you have sent it.");
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
