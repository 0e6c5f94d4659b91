// Begins: theme, login, then one page after another as the address says. Pages know nothing of each other.

import { onSessionLost, session } from "./api.js";
import { closeDialogs, show } from "./dialog.js";
import { announce, fill, h } from "./dom.js";
import { Live } from "./live.js";
import { logIn } from "./login.js";
import * as overview from "./pages/overview.js";
import * as prompt from "./pages/prompt.js";
import * as prompts from "./pages/prompts.js";
import * as request from "./pages/request.js";
import * as requests from "./pages/requests.js";
import * as tenants from "./pages/tenants.js";
import * as why from "./pages/why.js";
import { empty, failure } from "./states.js";
import { status } from "./status.js";
import { applyTheme } from "./theme.js";

const VIEWS = [
  { path: "overview", page: overview },
  { path: "why", page: why },
  { path: "prompts", page: prompts, detail: prompt },
  { path: "requests", page: requests, detail: request },
  { path: "tenants", page: tenants },
];

const content = document.getElementById("content");
const live = new Live();
let leaving = new AbortController();
let isLoggedIn = false;
let isSecure = true;

/** What a page gets: `params` of its address, `signal` that ends with it, `live` numbers, `onLive` while it is shown. */
function contextOf(params, query) {
  const signal = leaving.signal;
  const onLive = (callback) => {
    if (live.overview) callback(live.overview);
    live.addEventListener("overview", (event) => callback(event.detail), { signal });
  };
  /** Call when requests have ended since the page was opened, or since the last call, but not more often than so. */
  const onEnded = (callback, everyMs) => {
    let seen = null;
    let calledAt = Date.now();
    onLive(({ num_logged_requests: ended }) => {
      const isNew = seen !== null && ended !== seen;
      if (isNew && Date.now() - calledAt < everyMs) return;
      seen = ended;
      if (!isNew) return;
      calledAt = Date.now();
      callback();
    });
  };
  const onState = (callback) => live.addEventListener("state", () => callback(live.state), { signal });
  const visit = (path) => { location.hash = path; };
  return { params, query, signal, live, onLive, onEnded, onState, visit };
}

function route() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { view: VIEWS.find((view) => view.path === name) ?? VIEWS[0], params: rest.filter(Boolean).map(unescaped), query: new URLSearchParams(search) };
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function open() {
  closeDialogs();
  leaving.abort();
  leaving = new AbortController();
  if (!isLoggedIn) return;
  const { view, params, query } = route();
  const page = params.length && view.detail ? view.detail : view.page;
  showViews(view);
  const title = typeof page.title === "function" ? page.title(params) : page.title;
  document.title = `${title} · prefixgate`;
  const root = h("div.page");
  fill(content, root);
  window.scrollTo(0, 0);
  try {
    page.open(root, contextOf(params, query));
  } catch (error) {
    console.error(error);
    fill(root, failure(error, open));
  }
  announce(title);
}

function showViews(current) {
  fill(
    document.getElementById("views"),
    VIEWS.map(({ path, page }) =>
      h("a", { href: `#/${path}`, id: `view-${path}`, "aria-current": path === current?.path ? "page" : null }, page.title),
    ),
  );
}

async function enter(options = {}) {
  isLoggedIn = false;
  closeDialogs();
  live.stop();
  leaving.abort();
  fill(document.getElementById("views"));
  fill(document.getElementById("status"), status(null, {}));
  document.title = "Log in · prefixgate";
  await logIn(content, { isSecure, ...options });
  begin();
  content.focus({ preventScroll: true });
}

function begin() {
  isLoggedIn = true;
  live.start();
  fill(document.getElementById("status"), status(live, { leave }));
  open();
}

async function leave() {
  try {
    await session.end();
  } catch (error) {
    await show({ title: "Not logged out", content: h("p", `${error.message}; the session goes on until it is ended or over.`) });
    return;
  }
  enter();
}

async function start() {
  applyTheme();
  window.addEventListener("hashchange", open);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    content.focus({ preventScroll: true });
  });
  onSessionLost(() => { if (isLoggedIn) enter({ wasLoggedIn: true }); });
  try {
    const current = await session.current();
    isSecure = current.secure;
    if (!current.enabled) fill(content, empty("The dashboard is off.", "Set PREFIXGATE_ADMIN_KEY, start the gateway again, and log in with that key."));
    else if (current.expires_at) begin();
    else enter();
  } catch (error) {
    fill(content, failure(error, () => location.reload()));
  }
}

start();
