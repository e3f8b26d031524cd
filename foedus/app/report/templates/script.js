// Hovering, zooming, hiding series, sorting and finding sites. The page is complete without it.
(function () {
  "use strict";
  document.body.classList.add("live-script");
  var all = (sel, at) => Array.from((at || document).querySelectorAll(sel));
  var make = (tag, name, at) => { var e = document.createElement(tag); e.className = name; at.appendChild(e); return e; };
  var WIDE = 1000, HIGH = 400, hidden = new Set();
  var read = document.getElementById("series");
  var charts = {};
  JSON.parse(read ? read.textContent : "[]").forEach(c => { charts[c.key] = c; });

  function number(v) {
    if (v === null || Number.isNaN(v)) return "–";
    if (v === 0) return "0";
    if (Number.isInteger(v) && Math.abs(v) < 1e6) return String(v).replace(/\B(?=(\d{3})+$)/g, ",").replace("-", "−");
    var a = Math.abs(v), s = a < 1e-4 || a >= 1e6 ? v.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e") : String(+v.toPrecision(4));
    return s.replace(/-/g, "−");
  }
  function size(v) {
    for (var [unit, step] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (v >= step) return +(v / step).toPrecision(3) + " " + unit;
    return Math.round(v) + " B";
  }
  function linear(low, high, most) {
    var step = (high - low) / most, unit = Math.pow(10, Math.floor(Math.log10(step)));
    step = [1, 2, 5, 10].map(m => m * unit).find(s => s >= step * 0.999);
    var ticks = [];
    for (var k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) ticks.push(+(k * step).toPrecision(12));
    return ticks;
  }
  function decades(low, high, most) {
    var first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), ticks = [];
    if (last - first >= 1) {
      var step = Math.max(1, Math.ceil((last - first) / (most - 1)));
      for (var k = first; k <= last; k += step) ticks.push(Math.pow(10, k));
      return ticks;
    }
    for (k = first - 1; k <= last + 1; k++) for (var m of [1, 2, 5]) ticks.push(m * Math.pow(10, k));
    ticks = ticks.filter(v => v >= low && v <= high);
    return ticks.length > 1 ? ticks : linear(low, high, most);
  }

  function follow(figure) {
    var chart = charts[figure.dataset.chart];
    if (!chart) return;
    var by = figure.dataset.by, area = figure.querySelector(".area"), svg = area.querySelector("svg");
    var xs = s => (by === "rounds" ? s.r : s.b), told = by === "rounds" ? number : size;
    var ends = chart.series.map(xs), most = Math.max(...ends.map(x => x[x.length - 1])), least = by === "rounds" ? 1 : 0;
    var whole = [least, most > least ? most : least + 1], range = whole.slice(), cross, tip, pick, from = null;
    var shown = () => chart.series.filter(s => !hidden.has(s.name));

    function draw() {
      var [a, b] = range, low = Infinity, high = -Infinity;
      shown().forEach(s => xs(s).forEach((x, i) => {
        var y = s.y[i];
        if (x < a || x > b || y === null || (chart.log && y <= 0)) return;
        (s.band || []).map(end => end[i]).filter(v => v !== null && (!chart.log || v > 0)).concat(y).forEach(v => { low = Math.min(low, v); high = Math.max(high, v); });
      }));
      if (low > high) return;
      var log = chart.log && high > low * 1.001;
      if (chart.limit !== null && (log || chart.limit >= low) && range[0] === whole[0]) { low = Math.min(low, chart.limit); high = Math.max(high, chart.limit); }
      if (log) { var room = Math.max(Math.pow(high / low, 0.04), 1.05); low /= room; high *= room; }
      else { room = 0.06 * (high - low) || 0.05 * Math.abs(high) || 0.5; low = low < 0 || low - room > 0 ? low - room : 0; high += room; }
      var down = y => log ? 1 - (Math.log10(y > 0 ? y : low) - Math.log10(low)) / (Math.log10(high) - Math.log10(low)) : 1 - (y - low) / (high - low);
      all(".band", svg).forEach(path => {
        var s = chart.series.find(one => one.name === path.dataset.series), side = end => xs(s).flatMap((x, i) => end[i] === null ? [] : [
          (WIDE * (x - a) / (b - a)).toFixed(1) + " " + (HIGH * Math.min(Math.max(down(end[i]), -9), 9)).toFixed(1)]);
        path.classList.toggle("off", hidden.has(s.name));
        path.setAttribute("d", "M" + side(s.band[0]).concat(side(s.band[1]).reverse()).join("L") + "Z");
      });
      all(".line", svg).forEach(path => {
        var s = chart.series.find(one => one.name === path.dataset.series), d = "", pen = "M";
        path.classList.toggle("off", hidden.has(s.name));
        xs(s).forEach((x, i) => {
          if (s.y[i] === null) { pen = "M"; return; }
          d += pen + (WIDE * (x - a) / (b - a)).toFixed(1) + " " + (HIGH * Math.min(Math.max(down(s.y[i]), -9), 9)).toFixed(1);
          pen = "L";
        });
        path.setAttribute("d", d + (s.y.length === 1 ? "h.01" : ""));
      });
      var rows = log ? decades(low, high, 5) : linear(low, high, 5), columns = linear(a, b, 5);
      svg.querySelector(".grid").setAttribute("d", rows.map(v => "M0 " + (HIGH * down(v)).toFixed(1) + "H" + WIDE).join(""));
      var limit = svg.querySelector(".limit");
      if (limit) limit.setAttribute("d", "M0 " + (HIGH * Math.min(Math.max(down(chart.limit), -1), 2)).toFixed(1) + "H" + WIDE);
      label(figure.querySelector(".side"), rows.map(v => [number(v), "top", down(v)]));
      label(figure.querySelector(".below"), columns.map(v => [told(v), "left", (v - a) / (b - a)]));
    }
    function label(box, marks) {
      box.textContent = "";
      marks.forEach(([text, side, at]) => { var e = make("span", "", box); e.textContent = text; e.style[side] = (100 * at).toFixed(1) + "%"; });
    }
    function at(event) {
      var box = area.getBoundingClientRect(), p = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      return { p: p, x: range[0] + p * (range[1] - range[0]), width: box.width };
    }
    function nearest(list, x) {
      var i = 0, j = list.length - 1;
      while (j - i > 1) { var m = (i + j) >> 1; if (list[m] < x) i = m; else j = m; }
      return x - list[i] < list[j] - x ? i : j;
    }
    function clear() { [cross, tip, pick].forEach(e => e && e.remove()); cross = tip = pick = null; }
    area.addEventListener("pointermove", event => {
      var here = at(event);
      cross = cross || make("div", "cross", area); tip = tip || make("div", "tip", area);
      cross.style.left = 100 * here.p + "%";
      tip.textContent = "";
      var first = shown()[0];
      if (!first) return clear();
      var i = nearest(xs(first), here.x), head = make("div", "", tip);
      head.textContent = "round " + number(first.r[i]) + ", " + size(first.b[i]) + " sent";
      shown().forEach(s => {
        var k = nearest(xs(s), here.x), row = make("div", "", tip);
        make("i", "c" + s.c, row);
        row.appendChild(document.createTextNode((chart.series.length > 1 ? s.name + " " : "") + number(s.y[k])));
      });
      tip.style.top = ".4rem";
      tip.style.left = here.p < 0.5 ? here.p * here.width + 10 + "px" : "";
      tip.style.right = here.p < 0.5 ? "" : (1 - here.p) * here.width + 10 + "px";
      if (from !== null) {
        pick = pick || make("div", "pick", area);
        pick.style.left = 100 * Math.min(from, here.p) + "%"; pick.style.width = 100 * Math.abs(here.p - from) + "%";
      }
    });
    area.addEventListener("pointerdown", event => { if (event.pointerType !== "touch") { from = at(event).p; event.preventDefault(); } });
    area.addEventListener("pointerup", event => {
      var to = at(event).p;
      if (from !== null && Math.abs(to - from) > 0.02) {
        var [a, b] = range, x = p => a + p * (b - a);
        range = [x(Math.min(from, to)), x(Math.max(from, to))];
        draw();
      }
      from = null; clear();
    });
    area.addEventListener("pointerleave", () => { from = null; clear(); });
    area.addEventListener("dblclick", () => { range = whole.slice(); draw(); });
    figure.redraw = draw;
  }
  var figures = all(".chart");
  figures.forEach(follow);

  all("[data-toggle]").forEach(button => button.addEventListener("click", () => {
    var name = button.dataset.toggle, off = !hidden.has(name);
    if (off) hidden.add(name); else hidden.delete(name);
    button.setAttribute("aria-pressed", String(!off));
    figures.forEach(f => f.redraw && f.redraw());
    all(".dots i").forEach(dot => { if (dot.dataset.series === name) dot.classList.toggle("off", off); });
  }));

  all("table.sortable").forEach(table => {
    var heads = all("thead th", table), body = table.tBodies[0];
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      var sort = () => {
        var up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(h => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        var key = row => { var v = row.cells[column].dataset.v || row.cells[column].textContent, n = parseFloat(v); return v !== "" && !Number.isNaN(n) && column ? n : v; };
        var rows = all("tr", body).sort((p, q) => {
          var a = key(p), b = key(q);
          if (typeof a === "number" && typeof b === "number") return a - b;
          return String(a).localeCompare(String(b), undefined, { numeric: true });
        });
        (up ? rows : rows.reverse()).forEach(row => body.appendChild(row));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
    });
    var section = table.closest("section"), find = section.querySelector(".find input"), chips = all("[data-only]", section), only = null;
    var sift = () => {
      var text = find ? find.value.trim().toLowerCase() : "";
      all("tr", body).forEach(row => {
        row.hidden = (only !== null && !row.classList.contains(only)) || !row.cells[0].textContent.toLowerCase().includes(text);
        row.style.display = row.hidden ? "none" : "";
      });
    };
    if (find) find.addEventListener("input", sift);
    chips.forEach(chip => chip.addEventListener("click", () => {
      only = only === chip.dataset.only ? null : chip.dataset.only;
      chips.forEach(c => c.setAttribute("aria-pressed", String(c.dataset.only === only)));
      sift();
    }));
  });

  all(".attendance svg").forEach(svg => {
    var figure = svg.closest("figure"), names = all(".who span", figure).map(e => e.textContent), tip;
    svg.addEventListener("pointermove", event => {
      var box = svg.getBoundingClientRect(), plane = svg.viewBox.baseVal, rounds = +svg.dataset.rounds;
      var column = Math.min(Math.floor((event.clientX - box.left) / box.width * plane.width), plane.width - 1);
      var row = Math.min(Math.floor((event.clientY - box.top) / box.height * plane.height), plane.height - 1);
      var first = Math.floor(column * rounds / plane.width) + 1, last = Math.floor((column + 1) * rounds / plane.width);
      tip = tip || make("div", "tip", figure);
      tip.textContent = (names[row] || (svg.dataset.names ? JSON.parse(svg.dataset.names)[row] : "site " + (row + 1))) + ", round " + first + (last > first ? "–" + last : "");
      var outer = figure.getBoundingClientRect(), right = event.clientX - outer.left > outer.width / 2;
      tip.style.top = event.clientY - outer.top + 14 + "px";
      tip.style.left = right ? "" : event.clientX - outer.left + "px";
      tip.style.right = right ? outer.right - event.clientX + "px" : "";
    });
    svg.addEventListener("pointerleave", () => { if (tip) tip.remove(); tip = null; });
  });
})();
