// Step 3: the photos that were looked at, as a list with a large view beside it.

import {$, h, keyed, percent} from "/dom.js";

const SURE_ENOUGH = 0.2, MOST_NEXT = 5, DEEPEST = 12;

export class Results {
  // act: (name, values) => Promise; get: path => Promise of JSON; correct: photo => opens the editor
  constructor({act, get, correct}) {
    Object.assign(this, {act, get, correct});
    this.chosen = null;
    this.objects = false;
    this.view = {scale: 1, x: 0, y: 0};
    this._buildViewer();
    document.addEventListener("keydown", event => this._key(event));
  }

  show(state) {
    this.state = state;
    const {photos} = state;
    $("#results").hidden = !photos.length;
    $("#no-photos").hidden = photos.length > 0;
    if (!photos.some(photo => photo.key === this.chosen)) this.chosen = photos[0]?.key ?? null;
    keyed($("#list"), photos, photo => photo.key, photo => this._stamp(photo), photo => this._card(photo));
    this._showSliders();
    this._showProgress();
    this._showNext();
    this._showChosen();
  }

  choose(key, focus = false) {
    this.chosen = key;
    this.fit();
    this.show(this.state);
    const card = $(`#list [data-key="${key}"]`);
    card?.scrollIntoView({block: "nearest", inline: "nearest"});
    if (focus) card?.querySelector(".card").focus({preventScroll: true});
  }

  get photo() { return this.state?.photos.find(photo => photo.key === this.chosen) ?? null; }

  path(photo, file) { return `/api/${this.state.session}/photos/${photo.key}/${file}`; }

  // ---- The list

  _stamp(photo) {
    return [photo.stamp, photo.done, photo.corrected, photo.key === this.chosen,
      ...Object.values(photo.scores).map(each => each.present)].join();
  }

  _card(photo) {
    const isChosen = photo.key === this.chosen;
    return h("li", {},
      h("button", {type: "button", class: "card", "aria-current": isChosen ? "true" : false, onclick: () => this.choose(photo.key)},
        h("img", {src: this.path(photo, `small.jpg?${photo.stamp}`), alt: "", loading: "lazy", width: photo.width, height: photo.height}),
        h("span", {class: "card-text"}, h("b", {}, photo.name), this._verdict(photo))),
      h("button", {type: "button", class: "cross", "aria-label": `Remove ${photo.name}`, title: "Remove",
        onclick: () => this.act("remove-photo", {key: photo.key})}, "×"));
  }

  _verdict(photo) {
    if (photo.corrected) return h("span", {class: "quiet"}, `painted by you: ${photo.painted.join(", ") || "nothing here"}`);
    if (!photo.done) return h("span", {class: "quiet"}, this.state.examples.length ? "waiting" : "waiting for your first example");
    const present = this.state.classes.filter(each => photo.scores[each.name]?.present);
    if (!present.length) return h("span", {class: "quiet"}, "nothing found");
    return h("span", {class: "dots"}, present.map(each => h("span", {style: {"--colour": each.colour}}, h("i"), each.name)));
  }

  _showNext() {
    const unsure = this.state.photos.filter(photo => photo.done && !photo.corrected && photo.uncertainty >= SURE_ENOUGH)
      .sort((a, b) => b.uncertainty - a.uncertainty).slice(0, MOST_NEXT);
    const stamp = unsure.map(photo => `${photo.key}/${photo.stamp}/${photo.uncertainty}`).join();
    if (stamp === this.nextStamp) return;
    this.nextStamp = stamp;
    $("#next-box").replaceChildren(...unsure.length ? [
      h("h3", {}, "Which photo should I label next?"),
      h("p", {class: "quiet"}, "The least sure come first. A click opens one to correct it."),
      h("div", {id: "next"}, unsure.map(photo => h("button", {
        type: "button", title: photo.name, "aria-label": `Label ${photo.name}, ${percent(photo.uncertainty)} unsure`,
        onclick: () => { this.choose(photo.key); this.correct(photo); }},
        h("img", {src: this.path(photo, `small.jpg?${photo.stamp}`), alt: "", loading: "lazy"}),
        h("span", {}, `${percent(photo.uncertainty)} unsure`)))),
    ] : []);
  }

  // ---- Sliders and progress

  _showSliders() {
    const known = this.state.photos.length ? this.state.classes.filter(each => each.known) : [];
    const stamp = JSON.stringify([known.map(each => [each.number, each.name]), this.state.crisp]);
    if (stamp === this.sliderStamp) return;  // a slider that is being moved must stay
    this.sliderStamp = stamp;
    $("#sliders").replaceChildren(...known.length ? [
      h("p", {class: "quiet"}, "How sure must it be? Lower shows more, higher less."), ...known.map(each => this._slider(each)), this._crispSwitch()] : []);
  }

  _crispSwitch() {
    const why = this.canRefine ? "Large objects are outlined anew by MobileSAM. Small or many objects stay as they are."
      : "This needs MobileSAM, which is not on this machine: run `emat weights fetch mobilesam` and reload the page.";
    return h("label", {class: "switch", title: why},
      h("input", {type: "checkbox", role: "switch", id: "crisp", checked: this.canRefine && this.state.crisp, disabled: !this.canRefine,
        onchange: event => this.act("crisp", {value: event.target.checked})}),
      h("span", {}, "Crisp outlines", h("em", {}, why)));
  }

  _slider(each) {
    const shown = h("b", {}, percent(each.threshold));
    const label = h("label", {class: "score", style: {"--colour": each.colour, "--share": percent(each.threshold).replace(" ", "")}},
      h("span", {}, each.name),
      h("input", {type: "range", min: 0.02, max: 0.98, step: 0.02, value: each.threshold, "data-number": each.number,
        "aria-label": `Threshold of ${each.name}`, oninput: event => {
          const value = Number(event.target.value);
          shown.textContent = percent(value);
          label.style.setProperty("--share", `${100 * value}%`);
          clearTimeout(this.sliding);
          this.sliding = setTimeout(() => this.act("threshold", {number: each.number, value}), 60);
        }}), shown);
    return label;
  }

  _showProgress() {
    const {phase, done, count, problem} = this.state.search, left = this.state.photos.filter(photo => photo.waiting).length;
    const box = $("#progress"), stamp = JSON.stringify([phase, problem, phase === "stopped" && left]);
    if (stamp !== this.progressStamp) {  // only then: a button that is made anew all the time cannot be clicked
      this.progressStamp = stamp;
      const bar = h("span", {class: "bar"}, h("i"));
      const button = (name, text) => h("button", {type: "button", id: name, onclick: () => this.act(name)}, text);
      box.replaceChildren(...{
        learning: [h("span", {class: "bar unknown"}, h("i")), h("span", {}, "Learning from your examples")],
        looking: [bar, h("span", {class: "count"}), button("stop", "Stop")],
        refining: [bar, h("span", {class: "count"}), button("stop", "Stop")],
        stopped: left ? [h("span", {}, `Stopped: ${left} of ${this.state.photos.length} photos are left`), button("continue", "Continue")] : [],
        idle: problem ? [h("span", {class: "problem"}, problem)] : [],
      }[phase]);
    }
    if (!["looking", "refining"].includes(phase)) return;
    box.querySelector(".bar i").style.width = `${100 * done / Math.max(1, count)}%`;
    const now = Math.min(done + 1, count), what = phase === "looking" ? "Looking at photo" : "Making outlines crisp: photo";
    box.querySelector(".count").textContent = count ? `${what} ${now} of ${count}` : "Looking at your photos";
  }

  // ---- The large view

  _buildViewer() {
    const tool = (text, label, title, onclick) => h("button", {type: "button", title, "aria-label": label, onclick}, text);
    this.before = h("img", {alt: "", draggable: "false"});
    this.after = h("img", {alt: "", class: "after", draggable: "false"});
    this.stage = h("div", {class: "stage"}, this.before, this.after);
    this.window = h("div", {class: "window", tabindex: "0", role: "group", "aria-label": "Large view. Arrow keys go to other photos, H hides the masks."}, this.stage);
    this.slider = h("input", {type: "range", min: 0, max: 100, value: 0, "aria-label": "Before and after", oninput: () => this._split()});
    this.name = h("h3", {});
    this.table = h("div", {class: "table-box", tabindex: "0", role: "group", "aria-label": "Measurements"});
    this.correctButton = h("button", {type: "button", id: "correct", class: "primary", onclick: () => this.correct(this.photo)}, "Correct this photo");
    this.switch = h("input", {type: "checkbox", role: "switch", id: "objects", onchange: event => { this.objects = event.target.checked; this._showChosen(); }});
    $("#viewer").append(
      h("div", {class: "row viewer-head"}, tool("‹", "Previous photo", "Previous (←)", () => this.step(-1)), this.name,
        tool("›", "Next photo", "Next (→)", () => this.step(1))),
      this.window,
      h("div", {class: "row viewer-tools"}, h("label", {class: "before-after"}, "Before", this.slider, "After"),
        h("span", {class: "group"}, tool("−", "Zoom out", "Zoom out (−)", () => this.zoom(0.8)), tool("Fit", "Fit the whole photo", "Fit (0)", () => this.fit()),
          tool("+", "Zoom in", "Zoom in (+)", () => this.zoom(1.25)))),
      h("div", {class: "row"}, this.correctButton, h("label", {class: "switch"}, this.switch, h("span", {}, "Count single objects"))),
      this.table);
    this.slider.value = 100;
    this._split();
    this._listen();
  }

  async _showChosen() {
    const {photo} = this;
    if (!photo) { this.shownStamp = null; return; }
    const stamp = [photo.key, photo.stamp, photo.done, photo.corrected, this.objects].join();
    if (stamp === this.shownStamp) return;
    this.shownStamp = stamp;
    this.name.textContent = photo.name;
    this.window.style.setProperty("--ratio", `${photo.width} / ${photo.height}`);
    const plain = this.path(photo, "photo.png"), found = photo.done || photo.corrected;
    if (this.before.getAttribute("src") !== plain) this.before.src = plain;
    this.after.src = found ? this.path(photo, `large.jpg?objects=${this.objects ? 1 : 0}&${photo.stamp}`) : plain;
    this.after.alt = `${photo.name} with what was found on it`;
    if (!found) return this.table.replaceChildren(h("p", {class: "quiet"}, "Not looked at yet."));
    const rows = await this.get(this.path(photo, `result?objects=${this.objects ? 1 : 0}`)).catch(() => null);
    if (rows && stamp === this.shownStamp) this.table.replaceChildren(this._table(rows, photo));
  }

  _table(rows, photo) {
    const head = ["Class", "Score", "Share", "Area (px)", ...this.objects ? ["Objects", "Mean"] : []];
    const classes = new Map(this.state.classes.map(each => [each.name, each]));
    const cell = (text, isNumber = true) => h("td", {class: isNumber ? "number" : ""}, text);
    const whole = value => Math.round(value).toLocaleString("en");
    return h("table", {}, h("thead", {}, h("tr", {}, head.map(text => h("th", {scope: "col", title: text === "Mean" ? "Mean area of an object in pixels" : null}, text)))),
      h("tbody", {}, rows.map(row => h("tr", {class: row.area ? "" : "absent"},
        h("th", {scope: "row", style: {"--colour": classes.get(row.name)?.colour ?? "gray"}}, h("i"), row.name),
        photo.corrected ? cell("painted", false) : h("td", {}, this._score(row, classes.get(row.name))),
        cell(row.area ? percent(row.share) : "–"), cell(row.area ? whole(row.area) : "–"),
        ...this.objects ? [cell(String(row.objects.length)), cell(row.objects.length ? whole(row.objects.reduce((sum, area) => sum + area, 0) / row.objects.length) : "–")] : []))));
  }

  _score(row, shown) {
    if (row.score === null) return "–";
    return h("span", {class: "score-bar", style: {"--colour": shown?.colour ?? "gray"}},
      h("span", {class: "bar"}, h("i", {style: {width: `${100 * row.score}%`}}), h("u", {style: {left: `${100 * (shown?.presence ?? 0.5)}%`}})),
      h("b", {}, percent(row.score)));
  }

  step(by) {
    const {photos} = this.state, index = photos.findIndex(photo => photo.key === this.chosen) + by;
    if (photos[index]) this.choose(photos[index].key);
  }

  _split() { this.after.style.clipPath = `inset(0 ${100 - this.slider.value}% 0 0)`; }

  zoom(factor, x = 0.5, y = 0.5) {
    const scale = Math.min(Math.max(this.view.scale * factor, 1), DEEPEST), change = scale / this.view.scale;
    // x and y are shares of the window; the photo under them stays where it is.
    this._look(scale, x - (x - this.view.x) * change, y - (y - this.view.y) * change);
  }

  fit() { this._look(1, 0, 0); }

  _look(scale, x, y) {
    const keep = value => Math.min(0, Math.max(value, 1 - scale));
    this.view = {scale, x: keep(x), y: keep(y)};
    this.stage.style.transform = `translate(${100 * this.view.x}%, ${100 * this.view.y}%) scale(${scale})`;
  }

  _listen() {
    let last = null;
    const share = event => {
      const box = this.window.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    this.window.addEventListener("wheel", event => {
      if (!event.ctrlKey && this.view.scale === 1 && event.deltaY > 0) return;  // the page scrolls on
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), ...share(event));
    }, {passive: false});
    this.window.addEventListener("pointerdown", event => { last = share(event); this.window.setPointerCapture(event.pointerId); });
    this.window.addEventListener("pointermove", event => {
      if (!last) return;
      const now = share(event), {scale, x, y} = this.view;
      this._look(scale, x + now[0] - last[0], y + now[1] - last[1]);
      last = now;
    });
    for (const name of ["pointerup", "pointercancel"]) this.window.addEventListener(name, () => { last = null; });
  }

  _key(event) {
    if (!this.photo || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (event.target.matches("input, select, textarea")) return;
    const inside = $("#results").contains(event.target), {key} = event;
    if (!inside && event.target !== document.body) return;
    const does = {ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), "+": () => this.zoom(1.25), "=": () => this.zoom(1.25),
      "-": () => this.zoom(0.8), 0: () => this.fit(), h: () => { this.slider.value = Number(this.slider.value) > 50 ? 0 : 100; this._split(); }}[key];
    if (does) { event.preventDefault(); does(); }
  }
}
