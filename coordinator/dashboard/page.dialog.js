// Dialogs: fields, errors beside their fields, a confirmation, and what can be copied.

import { at, element, note } from "./page.dom.js";
import { count } from "./page.text.js";

// A labelled control. `attributes.options` are [value, text] of a select, `attributes.rows` makes a text area.
export function field(name, label, { options, ...attributes } = {}, help = null) {
  const kind = options ? "select" : attributes.rows ? "textarea" : "input";
  const control = element(kind, options ? options.map(([value, text]) => element("option", text, { value })) : "",
    { id: `field-${name}`, name, ...(options ? {} : { autocomplete: "off", spellcheck: "false" }), ...attributes, "aria-describedby": `help-${name} error-${name}` });
  return element("div", [element("label", label, { for: `field-${name}` }), control, note(help || "", { id: `help-${name}` }), element("p", "", { id: `error-${name}`, class: "bad" })], { class: "field" });
}

export const group = (title, ...fields) => element("fieldset", [element("legend", title), element("div", fields, { class: "grid" })]);

// A fault of an action: what is wrong with which field, [[name of the field, text], ...].
export class Faults extends Error {
  constructor(faults) { super("Some fields are wrong."); this.faults = faults; }
}

const labelOf = (form, name) => form.querySelector(`label[for="field-${name}"]`);

// Every fault stands below its field; the alert names all of these fields, and the first one gets the focus.
function showFaults(form, alert, faults) {
  const known = faults.filter(([name]) => name && labelOf(form, name)), others = faults.filter(([name]) => !name || !labelOf(form, name));
  const places = [...new Set(known.map(([name]) => name))];
  for (const name of places) {
    at(`error-${name}`).textContent = known.filter(([place]) => place === name).map(([, text]) => text).join("; ");
    at(`field-${name}`).setAttribute("aria-invalid", "true");
    const folded = at(`field-${name}`).closest("details");
    if (folded) folded.open = true;
  }
  alert.textContent = [places.length ? `${count(places.length, "field")} to correct: ${places.map((name) => labelOf(form, name).textContent).join(", ")}.` : "", ...others.map(([, text]) => text)].filter(Boolean).join(" ");
  if (places.length) at(`field-${places[0]}`).focus();
}

function clearFaults(form) {
  for (const control of form.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
  for (const text of form.querySelectorAll(".field .bad")) text.textContent = "";
}

// What the browser finds wrong with the controls, all at once.
function wrongControls(form) {
  return [...form.elements].filter((control) => control.willValidate && !control.checkValidity()).map((control) => [control.name, control.validationMessage]);
}

// Open the dialog. `act` gets the entered fields; what it returns replaces the form, and nothing closes the dialog.
export function ask({ title, content, confirm, danger = false, act, check = () => [] }) {
  const dialog = at("dialog"), alert = element("p", "", { role: "alert", class: "bad" });
  const send = element("button", confirm, danger ? { class: "danger" } : {}), cancel = element("button", "Cancel", { type: "button" });
  const form = element("form", [element("h2", title, { id: "dialog-title" }), ...content, alert, element("div", [send, cancel], { class: "buttons" })], { novalidate: "" });
  cancel.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    alert.textContent = "";
    clearFaults(form);
    try {
      const fields = Object.fromEntries(new FormData(form)), wrong = [...wrongControls(form), ...check(fields)];
      if (wrong.length) throw new Faults(wrong);
      const result = await act(fields);
      if (!result) return dialog.close();
      dialog.replaceChildren(...result);
      dialog.querySelector("button").focus(); // the button that was pressed is gone
    } catch (error) {
      send.disabled = false;
      if (error instanceof Faults) showFaults(form, alert, error.faults);
      else alert.textContent = error.message;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
}

export const typed = (name) => field("typed", `Type ${name} to confirm`, { required: "" });

export function requireTyped(fields, name) {
  if (fields.typed !== name) throw new Error(`Type ${name} exactly as shown.`);
}

// What a dialog shows only once. Escape shows `warning` and closes nothing.
export function result(title, content, warning) {
  const close = element("button", "Close", { type: "button" }), alert = element("p", "", { role: "alert", class: "bad", id: "dialog-warning", "data-warning": warning });
  close.addEventListener("click", () => at("dialog").close());
  return [element("h2", title, { id: "dialog-title" }), ...content, alert, element("div", close, { class: "buttons" })];
}

// A browser closes a dialog when nothing prevents the key; after a second Escape it asks no handler of "cancel".
window.addEventListener("keydown", (event) => {
  const alert = at("dialog-warning");
  if (event.key !== "Escape" || !alert) return;
  event.preventDefault();
  alert.textContent = alert.dataset.warning;
});

// A text in one line, or in `rows` lines, with a button that copies it.
export function copyable(id, label, text, rows = 1) {
  const shown = rows > 1 ? element("textarea", text, { id, readonly: "", rows, spellcheck: "false" }) : element("input", "", { id, readonly: "", value: text }), copy = element("button", "Copy", { type: "button", "aria-label": `Copy: ${label}` });
  copy.addEventListener("click", async () => {
    shown.select();
    // Browsers have no clipboard object on plain http:// of another machine.
    const isCopied = navigator.clipboard ? await navigator.clipboard.writeText(text).then(() => true, () => false) : document.execCommand("copy");
    copy.textContent = isCopied ? "Copied" : "Press Ctrl+C";
    copy.removeAttribute("aria-label");
    if (isCopied) copy.focus(); // selecting has moved it
  });
  return element("div", [element("label", label, { for: id }), element("div", [shown, copy], { class: "copyable" })], { class: "field" });
}
