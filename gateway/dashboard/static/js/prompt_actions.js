// What an operator does with registered prompts; each asks first, and says what came of it.

import { get, send } from "./api.js";
import { ask, confirm, field, show } from "./dialog.js";
import { announce, h } from "./dom.js";
import { diffView } from "./text_diff.js";

const of = (prompt) => `prompts/${encodeURIComponent(prompt.id)}`;

/** Register a new one; resolves to whether it was. */
export async function register() {
  const tenants = await get("tenants", { query: { limit: 1000 } });
  const scopes = h(
    "select",
    { id: "scope", name: "scope" },
    tenants.data.map((tenant) => h("option", { value: tenant.id, selected: tenant.id === "default" }, tenant.name)),
    h("option", { value: "public" }, "public: every tenant, and all share its blocks"),
  );
  const name = h("input", { id: "name", name: "name", required: true, maxlength: 100, autocomplete: "off" });
  return ask({
    title: "Register a prompt",
    fields: [field("Name", name, "Chats may name it; it cannot be changed."), field("For", scopes), textField(""), slotsField(), pinField()],
    action: "Register",
    run: async (data) => {
      const body = { name: data.get("name"), scope: data.get("scope"), ...versionOf(data), retention: { pin: data.has("pin") } };
      await send("POST", "prompts", body);
      announce(`${body.name} is registered`);
    },
  });
}

/** Add a version, from the text of the one in force. */
export async function addVersion(prompt) {
  const whole = await get(`${of(prompt)}/versions/${prompt.active_version}`);
  const text = plainText(whole.source);
  if (text === null) {
    await show({
      title: "Add a version",
      content: h("p", "This prompt has several messages or tools. Add versions of it with the command: prefixgate prompts register NAME --new-version --file FILE"),
    });
    return false;
  }
  const activate = h("input", { id: "activate", name: "activate", type: "checkbox" });
  activate.checked = true;
  return ask({
    title: `A new version of ${prompt.name}`,
    fields: [textField(text), slotsField(whole.slots), h("div.field.inline", activate, h("label", { for: "activate" }, "Put it to use at once"))],
    action: "Add",
    run: async (data) => {
      await send("POST", `${of(prompt)}/versions`, { ...versionOf(data), activate: data.has("activate") });
      announce("The version is added");
    },
  });
}

export const activate = (prompt, version) =>
  confirm({
    title: `Version ${version} of ${prompt.name}`,
    text: `From now on requests that name the prompt get version ${version}, and its blocks are computed and kept in place of those of version ${prompt.active_version}.`,
    action: "Put to use",
    run: () => send("POST", `${of(prompt)}/activate`, { version }),
  });

export const retire = (prompt) =>
  confirm({
    title: `Retire ${prompt.name}`,
    text: "No request finds it any more, and its blocks are evicted like all else. This is final, and its name stays taken.",
    action: "Retire",
    isDangerous: true,
    run: () => send("POST", `${of(prompt)}/retire`),
  });

export const warm = (prompt) =>
  confirm({
    title: `Warm ${prompt.name}`,
    text: "Its blocks are computed now, behind all requests that run.",
    action: "Warm",
    run: () => send("POST", `${of(prompt)}/warm`),
  });

/** Say how it is kept in the cache. */
export function keep(prompt, version) {
  const kept = version.retention;
  const priority = h("input", { id: "priority", name: "priority", type: "number", min: 0, max: 1000, value: kept.priority, required: true });
  const until = h("input", { id: "until", name: "until", type: "datetime-local" });
  if (kept.expires_at) until.value = localTime(kept.expires_at);
  return ask({
    title: `How ${prompt.name} is kept`,
    fields: [
      pinField(kept.pin),
      field("Priority", priority, "0 to 1000. Blocks with more are evicted later; a pin is never evicted."),
      field("Until", until, "When both end. Empty: never."),
    ],
    action: "Keep it so",
    run: (data) => {
      const expires = data.get("until") ? new Date(data.get("until")).toISOString() : null;
      return send("PUT", `${of(prompt)}/retention`, { pin: data.has("pin"), priority: Number(data.get("priority")), expires_at: expires });
    },
  });
}

/** Show how two versions differ. */
export async function compare(prompt, from, to) {
  const { diff } = await get(`${of(prompt)}/diff`, { query: { from, to } });
  await show({ title: `${prompt.name}: version ${from} and version ${to}`, content: diff ? diffView(diff) : h("p", "Both have the same canonical form.") });
}

function textField(text) {
  const area = h("textarea", { id: "text", name: "text", required: true, rows: 10, spellcheck: "false" });
  area.value = text;
  return field("System prompt", area, "Parts that vary are {{names}}; what stands before the first is what is cached, so put them last.");
}

function slotsField(names = []) {
  const slots = h("input", { id: "slots", name: "slots", value: names.join(", "), autocomplete: "off" });
  return field("Names of parts that vary", slots, "Separated by commas. Empty: none.");
}

function pinField(isPinned = false) {
  const pin = h("input", { id: "pin", name: "pin", type: "checkbox" });
  pin.checked = isPinned;
  return h("div.field.inline", pin, h("label", { for: "pin" }, "Pin it: its blocks are never evicted"));
}

function versionOf(data) {
  const slots = data.get("slots").split(",").map((name) => name.trim()).filter(Boolean);
  return { text: data.get("text"), ...(slots.length ? { slots } : {}) };
}

/** The text of a prompt that is one system message without tools; null: it is more than that. */
function plainText(source) {
  const messages = source.messages ?? [];
  const isPlain = messages.length === 1 && typeof messages[0].content === "string" && !(source.tools ?? []).length;
  return isPlain ? messages[0].content : null;
}

function localTime(iso) {
  const moment = new Date(iso);
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
