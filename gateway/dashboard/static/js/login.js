// The form that asks for the admin key. The key goes to the gateway once and is kept nowhere in the page.

import { session } from "./api.js";
import { fill, h } from "./dom.js";
import { field } from "./dialog.js";

/** Show the form; resolves when somebody is logged in. */
export function logIn(place, { wasLoggedIn = false, isSecure = true } = {}) {
  return new Promise((resolve) => {
    const key = h("input", { id: "key", name: "key", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
    const problem = h("p.problem", { role: "alert" });
    const button = h("button.primary", { type: "submit" }, "Log in");
    const onsubmit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      problem.textContent = "";
      try {
        await session.begin(key.value.trim());
        resolve();
      } catch (error) {
        problem.textContent = error.message;
        key.select();
        key.focus();
      } finally {
        button.disabled = false;
      }
    };
    const hint = "The value of PREFIXGATE_ADMIN_KEY with which the gateway was started.";
    const warning = isSecure ? null : h("p.note.warning", "This connection is not encrypted: others on the way can read the key.");
    const heading = h("h1", wasLoggedIn ? "The session has ended" : "Log in");
    fill(place, h("form.card.login", { onsubmit }, heading, warning, field("Admin key", key, hint), problem, button));
    key.focus();
  });
}
