// The dialog about a stack or video that was dropped: which pages, frames, depths and channels are wanted.

import {$, h} from "/dom.js";

const FEW = 200, WAIT = 200;  // photos that are proposed at most; milliseconds before the preview follows
const KINDS = {video: "frame", stack: "time", pages: "page"};
const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

export class Stacks {
  // act: (name, values) => Promise; state: () => the session's state; follow: () => keeps the page up to date, until what it returns is called;
  // opened: called with the key of a stack whose photos are there
  constructor({act, state, follow, opened}) {
    Object.assign(this, {act, state, follow, opened});
    this.dialog = $("#stack");
    this.stack = null;
    this.waiting = [];  // who waits until all is decided
    this.dialog.addEventListener("cancel", event => { event.preventDefault(); this._leave(); });
    $("#stack-leave").addEventListener("click", () => this._leave());
    $("#editor").addEventListener("close", () => this.show());
    $("#stack-form").addEventListener("submit", event => { event.preventDefault(); this._open(); });
  }

  // Ask about the first file that waits, one at a time, and not while the editor is open.
  show() {
    const {stacks} = this.state();
    if (!stacks.length) for (const resolve of this.waiting.splice(0)) resolve();
    if (this.isOpening) return;
    if (this.stack && !stacks.some(each => each.key === this.stack.key)) this._close();
    if (this.stack || !stacks.length || $("dialog[open]")) return;
    this.stack = stacks[0];
    this._build();
    this.dialog.showModal();
  }

  // Resolves when nothing is left to ask.
  decided() { return new Promise(resolve => { this.waiting.push(resolve); this.show(); }); }

  _close() {
    clearTimeout(this.drawing);
    this.stack = null;
    this.dialog.close();
  }

  _build() {
    const {name, kind, times, depths, channels, first} = this.stack, word = KINDS[kind], last = first + times - 1;
    const others = this.state().stacks.length - 1;
    $("#stack-title").textContent = name;
    const parts = [times > 1 && many(times, word), depths > 1 && many(depths, "depth"), channels.length && many(channels.length, "channel")].filter(Boolean);
    $("#stack-says").textContent = `${kind === "video" ? "A video" : kind === "pages" ? "A TIFF file" : "A stack"} of ${parts.join(", ")}. ` +
      (this.stack.to === "photos" ? "What should be looked at?" : "What should be painted?");
    const number = (id, label, value, low, high) => h("input", {type: "number", id, "aria-label": label, value, min: low, max: high, step: 1, required: true});
    const row = (title, ...children) => h("div", {class: "choice"}, h("span", {}, title), h("span", {class: "row"}, ...children));
    const option = (value, text) => h("option", {value}, text);
    const each = word.replace(/^./, letter => letter.toUpperCase());
    // To paint, a few are enough; to look at, as many as one can see through.
    const every = Math.max(1, Math.ceil(times / (this.stack.to === "photos" ? FEW : 3)));
    $("#stack-choices").replaceChildren(
      times > 1 ? row(`${each}s`, number("stack-first", `First ${word}`, first, first, last), "to", number("stack-last", `Last ${word}`, last, first, last),
        "every", number("stack-every", `Every how many ${word}s`, every, 1, times)) : "",
      depths > 1 ? row("Depths", h("select", {id: "stack-depths", "aria-label": "Depths"},
        option("max", "together: the brightest of each pixel"), option("mean", "together: the mean of each pixel"), option("none", "each on its own"),
        Array.from({length: depths}, (_, z) => option(String(z), `only depth ${z}`)))) : "",
      channels.length ? row("Channels", channels.map((channel, index) => h("label", {class: "switch"},
        h("input", {type: "checkbox", name: "channel", value: channel, checked: index < 3 || channels.length > 8}), h("span", {}, channel)))) : "",
      others > 0 ? h("label", {class: "switch"}, h("input", {type: "checkbox", id: "stack-same"}), h("span", {}, `The same for the ${many(others, "other file")}`)) : "");
    for (const input of this.dialog.querySelectorAll("#stack-choices :is(input, select)")) input.addEventListener("input", () => this._changed());
    $("#stack-preview").removeAttribute("src");
    this._changed(0);
  }

  // What is chosen, as the server takes it; null as long as it says nothing.
  _choice() {
    const {first, times, depths, channels} = this.stack, value = (id, usual) => Number($(id)?.value ?? usual);
    const depth = depths > 1 ? $("#stack-depths").value : "none", isOne = /^\d+$/.test(depth);
    const chosen = {first: value("#stack-first", first), last: value("#stack-last", first + times - 1), every: value("#stack-every", 1),
      project: isOne ? "none" : depth, depth: isOne ? Number(depth) : null, channels: [...this.dialog.querySelectorAll("[name=channel]:checked")].map(each => each.value)};
    const isRight = chosen.first >= first && chosen.first <= chosen.last && chosen.last < first + times && chosen.every >= 1 && (chosen.channels.length || !channels.length);
    return isRight ? chosen : null;
  }

  _changed(wait = WAIT) {
    const {depths, channels, most, key} = this.stack, chosen = this._choice();
    const count = chosen ? (Math.floor((chosen.last - chosen.first) / chosen.every) + 1) * (depths > 1 && chosen.project === "none" && chosen.depth === null ? depths : 1) : 0;
    $("#stack-open").disabled = !count || count > most;
    $("#stack-open").textContent = count ? `Open ${many(count, "photo")}` : "Open";
    $("#stack-problem").textContent = !chosen ? (channels.length && !this.dialog.querySelector("[name=channel]:checked") ? "Choose at least one channel." : "The first comes before the last, within the numbers that there are.")
      : count > most ? `A file gives at most ${most} photos; take fewer of them.` : "";
    clearTimeout(this.drawing);
    if (!chosen || !this.state().session) return;
    const asked = new URLSearchParams([...["first", "last", "every", "project"].map(name => [name, String(chosen[name])]),
      ...chosen.depth === null ? [] : [["depth", String(chosen.depth)]], ...chosen.channels.map(channel => ["channel", channel])]);
    this.drawing = setTimeout(() => { $("#stack-preview").src = `/api/${this.state().session}/stacks/${key}/preview.jpg?${asked}`; }, wait);
  }

  async _open() {
    const chosen = this._choice(), button = $("#stack-open");
    if (!chosen || button.disabled) return;
    const files = $("#stack-same")?.checked ? this.state().stacks : [this.stack];
    button.disabled = $("#stack-leave").disabled = true;
    button.textContent = "Opening …";
    const end = this.follow();
    this.isOpening = true;
    for (const one of files) {
      // Another file may be shorter, or have other channels.
      const last = Math.min(chosen.last, one.first + one.times - 1), channels = chosen.channels.filter(channel => one.channels.includes(channel));
      const depth = one.depths > 1 ? {project: chosen.project, depth: chosen.depth === null ? null : Math.min(chosen.depth, one.depths - 1)} : {project: "none", depth: null};
      if (!await this.act("open-stack", {...chosen, ...depth, key: one.key, first: Math.min(chosen.first, last), last, channels})) await this.act("leave-stack", {key: one.key});
      else this.opened(one.key);
    }
    end();
    this.isOpening = $("#stack-leave").disabled = false;
    this.show();
  }

  async _leave() { if (this.stack && !$("#stack-leave").disabled) await this.act("leave-stack", {key: this.stack.key}); }
}
