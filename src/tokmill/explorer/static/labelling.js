// One label: it is said to be saved when the server has it on its disk, and not before.

import { post } from "./api.js";
import { say } from "./dom.js";

export async function save(run, place, label, tags = [], sample = null) {
  if (!run.labels) {
    say("Labels are not kept: start the explorer with --labels FILE.");
    return null;
  }
  try {
    const told = await post("labels", { place, label, tags, sample });
    say(
      (label === null ? "Label taken back" : "Saved: " + label) +
        " · " +
        told.saved.toLocaleString("en-US") +
        " labels",
    );
    return told;
  } catch (error) {
    say("Not saved. " + (error.what || error.message) + (error.next ? ". " + error.next : ""));
    return null;
  }
}
