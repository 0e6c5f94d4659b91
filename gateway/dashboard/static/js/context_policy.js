// Setting the mode and the parameters of the context policy for everybody, after asking.

import { send } from "./api.js";
import { PARAMS } from "./context_words.js";
import { ask, field } from "./dialog.js";
import { announce, h } from "./dom.js";
import { FOR_WHOM } from "./rule_switch.js";

const MODES = {
  on: {
    title: "Cut long chats of everybody?",
    action: "Turn on for everybody",
    follows: "Chats that grow beyond the high watermark are cut to the low one before they are sent. What stands behind a cut is computed once; until the next one all of it is reused.",
  },
  audit: {
    title: "Audit the context policy for everybody?",
    action: "Audit for everybody",
    follows: "Nothing that is sent changes: the log and the counters tell what would have been left out.",
  },
  off: {
    title: "Send chats of everybody whole again?",
    action: "Turn off for everybody",
    follows: "Chats that are longer than the model takes are refused. Those that were cut are computed anew as they come.",
  },
};

/** Ask for the parameters, set the mode, and tell whether that was done. */
export function setContextPolicy({ name, params }, mode, notes = []) {
  const { title, action, follows } = MODES[mode];
  const text = h("p", [follows, FOR_WHOM, ...notes].join(" "));
  const fields = mode === "off" ? null : h("div.params", Object.entries(PARAMS).map(([key, param]) => paramField(key, param, params[key])));
  return ask({
    title,
    fields: [text, fields],
    action,
    run: async (data) => {
      await send("PUT", `rules/${name}`, { mode, params: fields ? chosen(data) : params });
      announce(`${name} is ${mode === "audit" ? "in audit mode" : mode}`);
    },
  });
}

function paramField(key, { preset, label, means, choices }, value) {
  const attributes = { id: `param-${key}`, name: key };
  const hint = [h("code", key), `: ${means}`];
  if (choices) {
    const options = choices.map((choice) => h("option", { value: choice, selected: choice === (value ?? preset) }, choice));
    return field(label, h("select", attributes, options), hint);
  }
  const isNumber = typeof preset === "number";
  const control = h("input", { ...attributes, type: isNumber ? "number" : "text", step: isNumber ? "any" : null, value: value?.toString() ?? "", placeholder: isNumber ? preset : "none", autocomplete: "off" });
  return field(label, control, hint);
}

/** What was typed; what was left empty is as it is when nothing is chosen. */
function chosen(data) {
  const params = {};
  for (const [key, { preset }] of Object.entries(PARAMS)) {
    const text = data.get(key).trim();
    if (!text || text === preset) continue;
    if (Array.isArray(preset)) params[key] = text.split(",").map((name) => name.trim()).filter(Boolean);
    else params[key] = typeof preset === "number" ? Number(text) : text;
  }
  return params;
}
