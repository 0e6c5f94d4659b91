// Questions in front of the page, in the browser's own <dialog>: focus stays inside, Escape closes.

import { fill, h } from "./dom.js";
import { failure } from "./states.js";

/** Ask before something is done that cannot be undone; resolves to whether it was. Errors are shown in the dialog. */
export function confirm({ title, text, action, isDangerous = false, run }) {
  return open(title, (close) => {
    const problem = h("div");
    const yes = h("button", { class: isDangerous ? "danger" : "primary", type: "submit" }, action);
    return form(problem, [h("p", text)], yes, close, run);
  });
}

/**
 * Ask for values.
 * @param {object} options
 * @param {string} options.title
 * @param {Node[]} options.fields  made with `field`
 * @param {string} options.action  what the button says
 * @param {(data: FormData) => Promise<void>} options.run
 */
export function ask({ title, fields, action, run }) {
  return open(title, (close) => {
    const yes = h("button.primary", { type: "submit" }, action);
    return form(h("div"), fields, yes, close, run);
  });
}

/** Show something; resolves when it is closed. */
export function show({ title, content }) {
  return open(title, (close) => [content, h("div.actions", h("button", { type: "button", onclick: () => close(false) }, "Close"))]);
}

/** A labelled input: `control` is an <input>, <select> or <textarea> with an id. */
export function field(label, control, hint = null) {
  const hintId = hint ? `${control.id}-hint` : null;
  if (hintId) control.setAttribute("aria-describedby", hintId);
  return h("div.field", h("label", { for: control.id }, label), control, hint ? h("p.hint", { id: hintId }, hint) : null);
}

function form(problem, content, yes, close, run) {
  const no = h("button", { type: "button", onclick: () => close(false) }, "Cancel");
  const onsubmit = async (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    yes.disabled = true;
    try {
      await run(data);
      close(true);
    } catch (error) {
      yes.disabled = false;
      fill(problem, failure(error));
    }
  };
  return h("form", { onsubmit }, content, problem, h("div.actions", no, yes));
}

/** Close what asks: the page behind it is gone, or nobody is logged in any more. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}

function open(title, build) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    let outcome = false;
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" });
    const close = (value) => {
      outcome = value;
      dialog.close();
    };
    dialog.append(h("h2", { id: "dialog-title" }, title), ...[build(close)].flat());
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
      resolve(outcome);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
