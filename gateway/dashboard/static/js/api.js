// The admin API, asked with the session's cookie. The page adds nothing to what the API says.

const root = new URL("../admin/v1/", document.baseURI);
const own = new URL("./", document.baseURI);
const UNAUTHORIZED = 401;

/** What the gateway refused, in its own words. */
export class ApiError extends Error {
  constructor(status, body) {
    const error = body?.error ?? {};
    super(error.message ?? `the gateway answered ${status}`);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
  }
}

/** The gateway could not be reached at all. */
export class Unreachable extends Error {
  constructor() {
    super("the gateway does not answer");
  }
}

let lost = () => {};

/** Have something called when the session has ended. */
export function onSessionLost(callback) {
  lost = callback;
}

/** Read a path under /admin/v1; `query` values that are null, undefined or "" are left out. */
export function get(path, { query, signal } = {}) {
  return ask(address(path, query), { signal });
}

/** Change something: POST, PUT, PATCH or DELETE. */
export function send(method, path, body, { query } = {}) {
  return ask(address(path, query), { method, body: body === undefined ? undefined : JSON.stringify(body) });
}

/** The address of a path under /admin/v1. */
export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), root);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

export const session = {
  /** Tells until when one is logged in (`expires_at`; null: not) and whether others could read along (`secure`). */
  current: () => ask(new URL("session", own)),
  begin: (key) => ask(new URL("login", own), { method: "POST", body: JSON.stringify({ key }), keepsQuiet: true }),
  end: () => ask(new URL("logout", own), { method: "POST", keepsQuiet: true }),
};

async function ask(url, { method = "GET", body, signal, keepsQuiet = false } = {}) {
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["x-prefixgate-dashboard"] = "1";
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, { method, headers, body, signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable();
  }
  const isJson = (answer.headers.get("content-type") ?? "").includes("json");
  const value = isJson ? await answer.json() : null;
  if (answer.ok) return value;
  if (answer.status === UNAUTHORIZED && !keepsQuiet) lost();
  throw new ApiError(answer.status, value);
}
