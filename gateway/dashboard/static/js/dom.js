// Elements are made here and nowhere else: text goes in as text, so nothing that a client sent can become markup.

/**
 * Make an element.
 * @param {string} tag  "div", or "div.card.wide" with classes
 * @param {object} [props]  attributes; functions are listeners (onclick), booleans switch, null and undefined are left out
 * @param {...(Node|string|number|null|undefined|Array)} children
 * @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  if (props instanceof Node || Array.isArray(props) || (props !== null && props !== undefined && typeof props !== "object")) {
    children.unshift(props);
    props = null;
  }
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.replace(/^on/, ""), value);
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Put children in the place of what is there, but keep the focus where it was if that element has an id. */
export function fill(parent, ...children) {
  const wanted = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  if (wanted.length === parent.childNodes.length && wanted.every((child, index) => child === parent.childNodes[index])) return;
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "";
  parent.replaceChildren(...wanted);
  if (focused) document.getElementById(focused)?.focus();
}

/** Say something to whoever does not see the page change. */
export function announce(text) {
  const region = document.getElementById("announcer");
  region.textContent = "";
  setTimeout(() => { region.textContent = text; }, 50);
}
