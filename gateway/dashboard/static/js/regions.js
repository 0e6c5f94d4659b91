// Parts of a request, in words: whose tokens are they?

const MESSAGE = /^messages\[(\d+)\](?:\.content\[(\d+)\])?$/;
const TOOL = /^tools\[(\d+)\]$/;

const NAMED = {
  system: "the system prompt",
  template: "what the chat template writes itself",
  answer: "the answer",
};

/** "message 3", "part 2 of message 3", "tool 1", … */
export function ownerWords(owner) {
  if (owner in NAMED) return NAMED[owner];
  const message = MESSAGE.exec(owner);
  if (message) {
    const words = `message ${Number(message[1]) + 1}`;
    return message[2] === undefined ? words : `part ${Number(message[2]) + 1} of ${words}`;
  }
  const tool = TOOL.exec(owner);
  return tool ? `tool ${Number(tool[1]) + 1}` : owner;
}

/** Several of them in one phrase. */
export const ownersWords = (owners) => owners.map(ownerWords).join(", ");
