// Numbers of one answer on the page: made once, then changed in place as later answers come.

import { figure, write } from "./format.js";
import { h } from "./dom.js";

export class Figures {
  #figures = [];
  #texts = [];

  /** An element for the number at a path of the answer, such as "tokens.prompt". */
  of(path, format) {
    const element = figure(path, null, format);
    this.#figures.push({ element, path, format });
    return element;
  }

  /** An element for words that follow from the answer. */
  text(read) {
    const element = h("span");
    this.#texts.push({ element, read });
    return element;
  }

  /** Have something else follow the answers, such as the width of a bar. */
  also(change) {
    this.#texts.push({ read: change });
  }

  show(answer) {
    for (const { element, path, format } of this.#figures) write(element, valueAt(answer, path), format);
    for (const { element, read } of this.#texts) {
      const text = read(answer);
      if (element && element.textContent !== text) element.textContent = text;
    }
  }
}

const valueAt = (answer, path) => path.split(".").reduce((value, key) => value?.[key], answer);
