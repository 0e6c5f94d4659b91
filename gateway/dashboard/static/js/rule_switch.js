// Setting the mode of a rule of the normalizer for everybody, after asking.

import { announce } from "./dom.js";
import { get, send } from "./api.js";
import { confirm } from "./dialog.js";
import { ruleWords } from "./rule_words.js";

const MODES = {
  on: {
    title: (name) => `Turn ${name} on for everybody?`,
    action: "Turn on for everybody",
    follows: "Prompts that it changes are cached in their new form from then on, so the next request of each is computed once more.",
  },
  audit: {
    title: (name) => `Audit ${name} for everybody?`,
    action: "Audit for everybody",
    follows: "It changes nothing that is sent to the model; what it would have saved is counted on the sample.",
  },
  off: {
    title: (name) => `Turn ${name} off for everybody?`,
    action: "Turn off for everybody",
    follows: "It no longer runs, and nothing is counted for it. Prompts that it changed are computed once more in the form in which they come.",
  },
};
export const FOR_WHOM = "From the next request on this holds for every tenant and endpoint for which nothing else was chosen. It can be taken back in the same way.";

/** Ask, set the mode, and tell whether that was done. What was chosen of its parameters stays. */
export function switchRule(name, mode, notes = []) {
  const { title, action, follows } = MODES[mode];
  return confirm({
    title: title(name),
    text: [ruleWords(name), FOR_WHOM, follows, ...notes].filter(Boolean).join(" "),
    action,
    run: async () => {
      const { data } = await get("rules");
      const params = paramsFor(data.find((rule) => rule.name === name), mode);
      await send("PUT", `rules/${encodeURIComponent(name)}`, { mode, params });
      announce(`${name} is ${mode === "audit" ? "in audit mode" : mode}`);
    },
  });
}

export const turnOn = (name) => switchRule(name, "on");

/** What was chosen. What audit mode only assumes has to be said, so that what was counted is what is turned on. */
export function paramsFor(rule, mode) {
  const { params = {}, audit_params: assumed = {} } = rule ?? {};
  return mode === "on" && Object.keys(params).length === 0 ? assumed : params;
}

/** The mode of a rule for a tenant and an endpoint, all choices taken together. */
export async function modeFor(name, { tenant, route }) {
  const { data } = await get("rules", { query: { tenant, route } });
  return data.find((rule) => rule.name === name)?.mode ?? null;
}
