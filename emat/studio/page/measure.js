// Numbers for a report: sizes with units, shares, OK or not OK. Everything is computed by the server.

import {$, Problem, ask, h, percent, say} from "/dom.js";

const WAIT = 250, UNITS = ["nm", "um", "mm", "cm", "m", "km"];
const WAYS = {file: "as the photo's file says", px: "pixels", typed: "size of a pixel", points: "two points on the photo", object: "an object of known width"};
const ASKED = {count: "number of objects", area: "area", share: "share of the photo (%)", share_within: "severity (%)"};
const COLUMNS = ["id", "class", "area", "equivalent_diameter", "circularity", "touches_border"];
const HEADS = {id: "No.", class: "Class", area: "Area", equivalent_diameter: "Diameter", circularity: "Circularity", touches_border: "At border"};
const short = value => typeof value !== "number" ? String(value ?? "–") : Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
const written = unit => unit.replace("um", "µm").replace("2", "²");

export class Measure {
  // base: () => the address of this session
  constructor(base) {
    this.base = base;
    this.photo = null;
    this.clicks = null;  // points that were clicked so far, while two of them are asked for
    this.box = $("#measure-body");
    this.built = "";
  }

  // The state of the session, and the photo that is shown in large.
  async show(state, photo) {
    const ready = photo && (photo.done || photo.corrected);
    $("#measure").hidden = !ready;
    if (!ready) { this.stamp = null; return; }
    this.state = state;
    const build = JSON.stringify([state.session, state.classes.map(each => [each.name, each.colour])]);
    if (build !== this.built) {
      this.built = build;
      await this._build();
    }
    const stamp = [state.session, photo.key, photo.stamp, photo.done, photo.corrected].join();
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.photo = photo;
    this._measure();
  }

  // ---- What is chosen

  async _build() {
    const {chosen, otsu} = await (await ask(`${this.base()}/measure`)).json();
    Object.assign(this, {chosen, otsu});
    const names = this.state.classes.map(each => each.name);
    const option = (value, text) => h("option", {value}, text);
    const select = (id, label, options, value, onchange) => {
      const made = h("select", {id, "aria-label": label, onchange}, options);
      made.value = value;
      return made;
    };
    const pick = name => event => this._choose({[name]: event.target.value});
    const tick = (name, yes, no, text, value) => h("label", {class: "switch"}, h("input", {type: "checkbox", checked: value === yes,
      onchange: event => this._choose({[name]: event.target.checked ? yes : no})}), h("span", {}, text));
    this.unitBox = h("span", {class: "row"});
    this.least = h("input", {type: "range", id: "smallest", min: 0, max: 100, step: 1, value: this._slider(), "aria-label": "Smallest object", oninput: event => this._smallest(Number(event.target.value))});
    this.leastText = h("b", {class: "number"}, this.chosen.smallest || "as learned");
    this.conditions = h("ul", {class: "chips", id: "conditions"});
    $("#measure-choices").replaceChildren(
      h("div", {class: "choice"}, h("span", {}, "Share of"), h("span", {class: "row"},
        select("inner", "Inner class", [option("", "nothing"), ...names.map(name => option(name, name))], chosen.inner, pick("inner")), "within",
        select("outer", "Outer class", [option("", "–"), ...names.map(name => option(name, name)), option(otsu, otsu)], chosen.outer, pick("outer")))),
      h("div", {class: "choice"}, h("span", {}, "Unit from"), h("span", {class: "row"},
        select("unit", "Where the unit comes from", Object.entries(WAYS).map(([value, text]) => option(value, text)), chosen.unit,
          event => { this.clicks = null; this._choose({unit: event.target.value}); this._units(); this._mark(); }), this.unitBox)),
      h("label", {class: "choice"}, h("span", {}, "Smallest object"), h("span", {class: "row"}, this.least, this.leastText)),
      h("div", {class: "choice"}, h("span", {}, "Objects"), h("span", {class: "row"},
        tick("border", "drop", "keep", "leave out those at the border", chosen.border), tick("fill_holes", true, false, "fill holes", chosen.fill_holes),
        tick("touching", "together", "split", "keep touching ones together", chosen.touching))),
      h("form", {class: "choice", id: "accept-form", onsubmit: event => { event.preventDefault(); this._accept(event.target); }}, h("span", {}, "A photo is OK if"), h("span", {class: "row"},
        select("accept-class", "Class", names.map(name => option(name, name)), names[0]),
        select("accept-what", "What", Object.entries(ASKED).map(([value, text]) => option(value, text)), "count"),
        select("accept-how", "Comparison", [option("<=", "is at most"), option(">=", "is at least"), option("==", "is exactly")], "<="),
        h("input", {id: "accept-value", inputmode: "decimal", placeholder: "2, or 5mm2", "aria-label": "Value"}), h("button", {type: "submit"}, "Add"), this.conditions)));
    this._units();
    this._showConditions();
  }

  _units() {
    const {unit, length} = this.chosen, [, number = "", of = "mm"] = length.match(/^([\d.]*)\s*(\D+)$/) ?? [];
    const value = h("input", {id: "length", inputmode: "decimal", value: number, placeholder: "10", "aria-label": "Length"});
    const name = h("select", {id: "length-unit", "aria-label": "Unit"}, UNITS.map(each => h("option", {value: each}, written(each))));
    name.value = UNITS.includes(of) ? of : "mm";
    const change = () => { if (value.value) this._choose({length: `${value.value.replace(",", ".")}${name.value}`}); };
    value.addEventListener("change", change);
    name.addEventListener("change", change);
    const classes = h("select", {id: "scale-class", "aria-label": "Object of known width", onchange: event => this._choose({scale_class: event.target.value})},
      h("option", {value: ""}, "choose a class"), this.state.classes.map(each => h("option", {value: each.name}, each.name)));
    classes.value = this.chosen.scale_class;
    this.unitBox.replaceChildren(...{
      typed: [value, name, "a pixel"],
      points: [h("button", {type: "button", id: "two-points", "aria-pressed": String(Boolean(this.clicks)), onclick: () => { this.clicks = []; this._units(); this._mark(); }},
        this.clicks ? `click point ${this.clicks.length + 1} on the photo` : this.chosen.points.length ? "click again" : "click two points"), value, name, "apart"],
      object: [classes, value, name, "wide"],
    }[unit] ?? []);
  }

  // The slider has more steps for small areas: 0 is what was learned, 100 twice the largest object of the photo.
  _slider() {
    const area = Number.parseFloat(this.chosen?.smallest) || 0;
    return area ? Math.round(100 * Math.log(area) / Math.log(this.largest ?? 10000)) : 0;
  }

  _smallest(step) {
    const area = step ? Math.max(1, Math.round(Math.exp(step / 100 * Math.log(this.largest ?? 10000)))) : 0;
    this.leastText.textContent = area ? `${area.toLocaleString("en")} px` : "as learned";
    clearTimeout(this.sliding);
    this.sliding = setTimeout(() => this._choose({smallest: area ? `${area}px` : ""}), WAIT);
  }

  _accept(form) {
    const [name, what, how, value] = ["class", "what", "how", "value"].map(each => form.querySelector(`#accept-${each}`).value.trim());
    if (!value) return;
    this._choose({accept: [...this.chosen.accept, `${name}.${what} ${how} ${value.replace(",", ".")}`]}).then(good => { if (good) form.querySelector("#accept-value").value = ""; });
  }

  _showConditions() {
    this.conditions.replaceChildren(...this.chosen.accept.map((text, index) => h("li", {class: "chip"}, h("span", {}, text),
      h("button", {type: "button", class: "cross", "aria-label": `Remove ${text}`, onclick: () => this._choose({accept: this.chosen.accept.filter((_, other) => other !== index)})}, "×"))));
  }

  // Choices are sent one after the other. What the server refuses is taken back.
  _choose(values) {
    const before = this.chosen;
    this.chosen = {...before, ...values};
    this.sending = (this.sending ?? Promise.resolve()).then(() => this._send(before));
    return this.sending;
  }

  async _send(before) {
    try {
      await ask(`${this.base()}/measure`, {method: "POST", json: this.chosen});
      this._showConditions();
      await this._measure();
      return true;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.chosen = before;
      say(error.message, "problem");
      return false;
    }
  }

  // ---- Two points of known distance

  _mark() {
    this.picture?.classList.toggle("asking", Boolean(this.clicks));
    const points = this.clicks ?? [];
    for (const mark of this.picture?.querySelectorAll("u") ?? []) mark.remove();
    for (let index = 0; index < points.length; index += 2) {
      this.picture.append(h("u", {style: {left: `${100 * points[index] / this.photo.fullWidth}%`, top: `${100 * points[index + 1] / this.photo.fullHeight}%`}}));
    }
  }

  async _click(event) {
    if (!this.clicks) return;
    const box = this.picture.getBoundingClientRect();
    this.clicks.push((event.clientX - box.left) / box.width * this.photo.fullWidth, (event.clientY - box.top) / box.height * this.photo.fullHeight);
    this._mark();
    if (this.clicks.length === 4) {
      const points = this.clicks.map(each => Math.round(10 * each) / 10);
      this.clicks = null;
      await this._choose({points, clicked: this.photo.name});
      if (!this.chosen.length) $("#length")?.focus();
    }
    this._units();
  }

  // ---- What was measured

  async _measure() {
    const {photo} = this, count = this.asked = (this.asked ?? 0) + 1;
    const base = `${this.base()}/photos/${photo.key}`;
    let answer;
    try {
      answer = await (await ask(`${base}/measure`)).json();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      answer = {problem: error.message};
    }
    if (count !== this.asked) return;
    if (answer.smallest?.largest) this.largest = Math.max(this.largest ?? 0, 2 * answer.smallest.largest, 100);
    if (!this.picture) this.picture = h("div", {class: "measured-photo", onclick: event => this._click(event)}, h("img"));
    const shown = this.picture.querySelector("img");  // the same element: the picture before stays until the new one is there
    Object.assign(shown, {alt: `${photo.name} with the objects that count`, width: photo.width, height: photo.height, src: `${base}/measured.jpg?${count}`});
    const numbers = h("div", {class: "measured"}, ...answer.problem ? [h("p", {class: "problem"}, answer.problem)] : this._numbers(answer));
    this.box.replaceChildren(h("div", {}, this.picture, h("p", {class: "quiet"}, this._origin(answer))), numbers);
    this._mark();
  }

  _origin({scale}) {
    if (!scale) return "Lengths and areas are in pixels. Grey objects are too small to count.";
    return `A pixel is ${short(scale.side)} ${written(scale.unit)} wide (${scale.source}). Grey objects are too small to count.`;
  }

  _numbers(answer) {
    const unit = answer.scale ? written(answer.scale.unit) : "px", colours = new Map(this.state.classes.map(each => [each.name, each.colour]));
    const head = {area: `Area, ${unit}${answer.scale ? "²" : ""}`, equivalent_diameter: `Diameter, ${unit}`};
    const dot = name => h("i", {style: {"--colour": colours.get(name) ?? "gray"}});
    return [
      answer.verdict && h("p", {id: "verdict", class: answer.verdict === "OK" ? "verdict good" : "verdict bad"}, answer.verdict),
      ...answer.notReliable.map(name => h("p", {class: "mark"}, `${name}: not reliable. On examples that were left out it is hardly found, so these numbers say little.`)),
      h("ul", {class: "sums"}, answer.photos.map(row => h("li", {}, dot(row.class), h("b", {}, row.class), ` ${row.count} ${row.count === 1 ? "object" : "objects"}, ${short(row.area)} ${unit}${answer.scale ? "²" : ""}, ${percent(row.share / 100)} of the photo`,
        row.share_within != null && h("strong", {class: "severity"}, `${row.share_within.toFixed(1)} % of ${row.within}`)))),
      h("div", {class: "table-box measured-table", tabindex: "0", role: "group", "aria-label": "Objects"}, h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map(key => h("th", {scope: "col"}, head[key] ?? HEADS[key])))),
        h("tbody", {}, answer.objects.map(row => h("tr", {}, COLUMNS.map(key => h("td", {class: key === "class" ? "" : "number"},
          key === "class" ? [dot(row.class), ` ${row.class}`] : key === "touches_border" ? (row[key] ? "yes" : "") : short(row[key]))))))) ),
      h("div", {class: "charts"}, answer.histograms.filter(each => each.numbers > 1).map(each => this._histogram(each, colours.get(each.class) ?? "gray"))),
      answer.count > answer.objects.length && h("p", {class: "quiet"}, `${answer.count - answer.objects.length} more objects are in the tables of the download.`),
    ].filter(Boolean);
  }

  _histogram({class: name, key, unit, counts, low, high, median, numbers}, colour) {
    const most = Math.max(...counts), title = `${name}: ${key.replace("_", " ")}${unit ? `, ${written(unit)}` : ""}`;
    return h("figure", {class: "histogram", style: {"--colour": colour}}, h("figcaption", {}, title),
      h("div", {class: "bars", role: "img", "aria-label": `${title}: median ${short(median)}, ${numbers} objects`}, counts.map(count => h("span", {style: {height: `${100 * count / most}%`}}))),
      h("div", {class: "row quiet"}, h("span", {}, short(low)), h("span", {}, `median ${short(median)}, n = ${numbers}`), h("span", {}, short(high))));
  }
}
