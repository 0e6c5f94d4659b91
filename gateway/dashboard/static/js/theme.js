// Light, dark, or as the system has it. The choice is this browser's.

import { recolor } from "./charts.js";
import { h } from "./dom.js";

const KEY = "prefixgate-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

/** Put the stored choice in force. */
export function applyTheme() {
  const theme = chosen();
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  recolor();
}

/** A button that goes through the three. */
export function themeButton() {
  const button = h("button.quiet", { type: "button", id: "theme" });
  const label = () => {
    button.textContent = { system: "Auto", light: "Light", dark: "Dark" }[chosen()];
    button.setAttribute("aria-label", `Colours: ${button.textContent}. Switch to ${NEXT[chosen()]}.`);
  };
  button.addEventListener("click", () => {
    localStorage.setItem(KEY, NEXT[chosen()]);
    applyTheme();
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  label();
  return button;
}

function chosen() {
  const stored = localStorage.getItem(KEY);
  return stored in NEXT ? stored : "system";
}
