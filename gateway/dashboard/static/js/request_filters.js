// Which requests are wanted: a form, the address of the page, and the query of the API are three forms of the same.

import { h } from "./dom.js";
import { field } from "./dialog.js";

const ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];
const STATUSES = [200, 400, 401, 404, 429, 499, 500, 503];
const DIGITS = /^\d+(\.\d+)?$/;

const MAIN = [
  { name: "tenant", label: "Tenant", kind: "tenant" },
  { name: "endpoint", label: "Endpoint", kind: "endpoint" },
  { name: "status", label: "Status", kind: "status" },
  { name: "since", label: "From", kind: "time" },
  { name: "min_prompt_tokens", label: "Prompt tokens, at least", kind: "count" },
];
const MORE = [
  { name: "until", label: "Before", kind: "time" },
  { name: "error", label: "Error code", kind: "text" },
  { name: "model", label: "Model", kind: "text" },
  { name: "key", label: "Id of the API key", kind: "text" },
  { name: "min_cached_tokens", label: "Cached tokens, at least", kind: "count" },
  { name: "min_output_tokens", label: "Output tokens, at least", kind: "count" },
  { name: "min_total_seconds", label: "Seconds in all, at least", kind: "seconds" },
];
const ALL = [...MAIN, ...MORE];

/** What an address asks for; other names in it mean nothing here. */
export function filtersOf(query) {
  return Object.fromEntries(ALL.map(({ name }) => [name, query.get(name)?.trim() ?? ""]).filter(([, value]) => value !== ""));
}

/** The address of the list with these filters. */
export function addressOf(filters) {
  const search = new URLSearchParams(filters).toString();
  return `#/requests${search ? `?${search}` : ""}`;
}

/**
 * The form.
 * @param {object} filters  as `filtersOf` gives them
 * @param {Map<string, string>} names  of tenants
 * @param {object} on
 * @param {(filters: object) => void} on.change  called as soon as a field is left or Enter pressed
 * @param {() => void} on.reset
 */
export function filterForm(filters, names, { change, reset }) {
  const build = ({ name, label, kind }) => field(label, CONTROLS[kind](name, filters[name] ?? "", names));
  const form = h("form.request-filters", { role: "search", "aria-label": "Filters of requests" });
  const apply = (event) => {
    event.preventDefault();
    if (form.reportValidity()) change(read(form));
  };
  form.addEventListener("change", apply);
  form.addEventListener("submit", apply);
  form.append(
    h("div.filters", MAIN.map(build), h("button", { type: "button", id: "reset-filters", onclick: reset }, "Reset")),
    h("details.more-filters", { open: MORE.some(({ name }) => name in filters) }, h("summary", "More filters"), h("div.filters", MORE.map(build))),
    h("button", { type: "submit", hidden: true }, "Apply"),
  );
  return form;
}

function read(form) {
  const data = new FormData(form);
  const values = ALL.map(({ name, kind }) => {
    const text = (data.get(name) ?? "").trim();
    return [name, kind === "time" && text ? new Date(text).toISOString() : text];
  });
  return Object.fromEntries(values.filter(([, value]) => value !== ""));
}

const idOf = (name) => `filter-${name}`;

function choice(name, value, options) {
  const all = [["", "Any"], ...options];
  if (!all.some(([known]) => known === value)) all.push([value, value]);
  return h("select", { id: idOf(name), name }, all.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}

function number(name, value, props = {}) {
  return h("input", { id: idOf(name), name, value, type: "number", min: 0, inputmode: "numeric", placeholder: "any", ...props });
}

function text(name, value) {
  return h("input", { id: idOf(name), name, value, type: "text", placeholder: "any", autocomplete: "off", spellcheck: "false", maxlength: 200 });
}

function moment(name, value) {
  const when = new Date(DIGITS.test(value) ? Number(value) * 1000 : value);
  const local = Number.isNaN(when.getTime()) ? "" : new Date(when.getTime() - when.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
  return h("input", { id: idOf(name), name, value: local, type: "datetime-local" });
}

function status(name, value) {
  return choice(name, value, STATUSES.map((code) => [String(code), String(code)]));
}

const CONTROLS = {
  tenant: (name, value, names) => choice(name, value, [...names]),
  endpoint: (name, value) => choice(name, value, ENDPOINTS.map((path) => [path, path])),
  status,
  time: moment,
  count: (name, value) => number(name, value, { step: 1 }),
  seconds: (name, value) => number(name, value, { step: "any" }),
  text,
};
