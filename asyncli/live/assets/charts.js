// The charts of a run, on one time axis: one line moves through all of them, and a zoom is of all.
// What each shows comes from the server (panels.py); here is only how it is drawn.

import { OF_UNIT, bytes, causeOf, clock, count } from './format.js';

const HEIGHT = 170;
const RECENT_S = 600;
// What is recorded or read at a steady pace is missing after so many of its pauses.
const MISSED_PAUSES = 2.5;
// Between the labels of the axis of time.
const CLOCK_STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];
// The first label of time begins below the lowest one of the other axis, which is half a line low.
const CLOCK_BELOW_PX = 10;
const MOST_COST_POINTS = 1200;
const ROWS_OF_NUMBERS = 24;
const SYNC = uPlot.sync('run');

// Role of a line -> colour (a variable of page.css), width and dash: no line is told by colour alone.
const ROLES = {
  asked: ['soft', 1.1, [2, 3]],
  total: ['ink', 1.8, []],
  server: ['server', 1.6, []],
  kernel: ['kernel', 1.6, [7, 3]],
  ours: ['ours', 1.6, [7, 3, 2, 3]],
  middle: ['ink', 1.5, []],
  high: ['violet', 1.3, [7, 3]],
  most: ['soft', 1.1, [2, 2]],
};
// A line of the run that is laid under has the dash of its own, and is wide and pale.
const REFERENCE_WIDTH = 5;
const BARS = ['kernel', 'violet', 'server', 'rest', 'ours', 'ink'];
const COST_LINES = {
  server_user: ['in the server', 'server'],
  kernel: ['in the kernel, for each end', 'kernel'],
  host_total: ['on the host in all', 'total'],
};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Of a line of the run that is laid under: its colour, weaker.
function paler(name) {
  return `${colour(name)}59`;
}

function sample(role, isReference) {
  const [name, ownWidth, dash] = ROLES[role];
  const width = isReference ? REFERENCE_WIDTH : ownWidth;
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('width', '26');
  svg.setAttribute('height', '10');
  svg.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  const ends = { x1: 0, x2: 26, y1: 5, y2: 5, stroke: isReference ? paler(name) : colour(name), 'stroke-width': width + 0.6 };
  for (const [key, value] of Object.entries(ends)) line.setAttribute(key, value);
  if (dash.length) line.setAttribute('stroke-dasharray', dash.join(' '));
  svg.append(line);
  return svg;
}

function square(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('width', '12');
  svg.setAttribute('height', '12');
  svg.setAttribute('aria-hidden', 'true');
  const box = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  for (const [key, value] of Object.entries({ width: 12, height: 12, fill: colour(name) })) box.setAttribute(key, value);
  svg.append(box);
  return svg;
}

// With a row of nothing where nothing was recorded, such as before a run was resumed. What is read
// seldom goes on through it (withBreaks).
export function withGaps(rows, widthS) {
  const longestS = MISSED_PAUSES * widthS;
  const whole = [];
  rows.forEach((row, place) => {
    const before = place ? rows[place - 1][0] : row[0];
    if (row[0] - before > longestS) whole.push([(before + row[0]) / 2]);
    whole.push(row);
  });
  return whole;
}

// The values of a line, which are undefined where nothing was read. They stay so where a reading
// holds until the next one, so that the line goes on; where the next one is missing they become
// null, which breaks it. Costly metrics are read every few seconds: the pauses beside a pause tell
// which pace is usual.
export function withBreaks(times, values, widthS) {
  const read = [];
  values.forEach((value, place) => {
    if (value !== undefined && value !== null) read.push(place);
  });
  const pauses = read.slice(1).map((place, index) => times[place] - times[read[index]]);
  // A shorter one is within a stretch, which has two rows.
  const pauseBeside = (index, step) => {
    let beside = index + step;
    while (pauses[beside] < widthS) beside += step;
    return pauses[beside] || 0;
  };
  const known = values.map((value) => (value === undefined ? null : value));
  read.forEach((place, index) => {
    const isLast = index === read.length - 1;
    const usualS = Math.max(widthS, pauseBeside(index, -1), isLast ? 0 : pauseBeside(index, 1));
    const longestS = MISSED_PAUSES * usualS;
    if (!isLast && pauses[index] > longestS) return;
    const end = isLast ? values.length : read[index + 1];
    for (let later = place + 1; later < end; later += 1) {
      if (values[later] === null || times[later] - times[place] > longestS) break;
      known[later] = undefined;
    }
  });
  return known;
}

// A reading between two breaks is no line: it is drawn as a point.
function alone(plot, index) {
  const places = [];
  // Where a line begins, as long as it has no second point.
  let begin = null;
  let isLine = false;
  plot.data[index].forEach((value, place) => {
    if (value === undefined) return;
    if (value !== null) {
      isLine = begin !== null;
      begin = begin ?? place;
      return;
    }
    if (begin !== null && !isLine) places.push(begin);
    begin = null;
    isLine = false;
  });
  if (begin !== null && !isLine) places.push(begin);
  return places;
}

// Of a logarithmic axis only these have a line.
function powersOfTen(_, ticks) {
  return ticks.map((tick) => (Number.isInteger(Math.round(Math.log10(tick) * 1e6) / 1e6) ? tick : null));
}

// One view of a run: its rows and bars, of which the last may be replaced by what comes next.
class View {
  constructor(whole, lastsS) {
    this.width_s = whole.width_s;
    this.rows = whole.rows;
    this.bars = whole.bars;
    this.lastsS = lastsS;
  }

  add(news) {
    this.width_s = news.width_s;
    this.rows = replaced(this.rows, news.rows, news.from_s, this.lastsS);
    this.bars = replaced(this.bars, news.bars, news.from_s, this.lastsS);
  }
}

// `from`: when the first of the stretches began that are replaced.
function replaced(before, news, from, lastsS) {
  if (!news.length) return before;
  let end = before.length;
  while (end > 0 && before[end - 1][0] >= from) end -= 1;
  const all = before.slice(0, end).concat(news);
  const oldest = all[all.length - 1][0] - lastsS;
  let start = 0;
  while (all[start][0] < oldest) start += 1;
  return start ? all.slice(start) : all;
}

function isRead(value) {
  return value !== null && value !== undefined;
}

// The last place at which a line of the run itself has a value: a second may have a sample and no
// tick, and after the drain there are no latencies.
function lastPlaceOf(x, lines) {
  const own = lines.filter((line) => !line.isReference);
  // A cost that is unknown by now has no number of before.
  if (own.some((line) => line.say)) return x.length - 1;
  let place = x.length - 1;
  while (place > 0 && !own.some((line) => isRead(line.values[place]))) place -= 1;
  return place;
}

// What was read at this place, or last before it as far as that holds; null: unknown.
function valueAt(values, place) {
  let before = place;
  while (before > 0 && values[before] === undefined) before -= 1;
  return values[before];
}

// A level holds until its next reading; what was counted or timed in other seconds does not.
function valuesThatHold(line) {
  if (line.is_level) return line.values;
  return line.values.map((value) => (value === undefined ? null : value));
}

// The values of `lines`, which are of the instants `from`, at those of `to`.
function movedTo(to, from, lines) {
  const places = new Map(from.map((t, place) => [t, place]));
  const moved = (before) => to.map((t) => (places.has(t) ? before[places.get(t)] : undefined));
  for (const line of lines) {
    line.values = moved(line.values);
    line.drawn = moved(line.drawn);
  }
}

// A chart: its figure, its uPlot, and what it draws of the data. `draw(view)` returns
// {x, lines: [{label, role or fill, values, drawn}], bands} or null where there is nothing to show.
class Chart {
  constructor(place, key, title, unit, draw, owner) {
    this.key = key;
    this.unit = unit;
    this.format = OF_UNIT[unit];
    this.draw = draw;
    this.owner = owner;
    this.plot = null;
    this.shape = '';
    this.title = title;
    this.box = element('div', { class: 'chart', tabindex: '0', role: 'img' });
    this.names = element('ul', { class: 'key' });
    this.numbers = element('table');
    this.details = element('details', {}, element('summary', {}, 'Numbers of this chart'), this.numbers);
    // The instant of the numbers below.
    this.when = element('small');
    this.caption = element('figcaption', {}, title, ' ', this.when);
    this.figure = element('figure', { id: `chart-${key}`, hidden: '' }, this.caption, this.box, this.names, this.details);
    place.append(this.figure);
    this.details.addEventListener('toggle', () => this.tabulate());
    this.box.addEventListener('keydown', (event) => this.onKey(event));
  }

  update() {
    const drawing = this.draw();
    this.drawing = drawing;
    this.figure.hidden = drawing === null;
    if (drawing === null) return;
    const shape = drawing.lines.map((line) => line.label).join('|') + drawing.logarithmic;
    const data = [drawing.x, ...drawing.lines.map((line) => line.drawn || line.values)];
    if (this.plot === null || shape !== this.shape) {
      this.shape = shape;
      this.build(drawing, data);
    } else {
      this.plot.setData(data, false);
    }
    this.owner.scale(this.plot);
    this.label();
    this.tabulate();
  }

  build(drawing, data) {
    if (this.plot) this.plot.destroy();
    const series = [{}];
    for (const line of drawing.lines) series.push(line.options);
    const value = (_, ticks) => ticks.map((tick) => (tick === null ? '' : this.format(tick)));
    const axis = { stroke: colour('soft'), grid: { stroke: colour('grid'), width: 1 }, ticks: { show: false }, font: '12px system-ui, sans-serif' };
    this.plot = new uPlot(
      {
        width: this.box.clientWidth || 600,
        height: HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: SYNC.key }, drag: { x: true, y: false, setScale: false }, points: { size: 5 } },
        scales: { x: { time: false }, y: drawing.logarithmic ? { distr: 3 } : { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1] } },
        series,
        bands: drawing.bands || [],
        axes: [
          { ...axis, values: (_, ticks) => ticks.map(clock), grid: { show: false }, size: 30, gap: CLOCK_BELOW_PX, incrs: CLOCK_STEPS_S, space: 70 },
          { ...axis, size: 76, values: value, filter: drawing.logarithmic ? powersOfTen : undefined },
        ],
        hooks: {
          setCursor: [() => this.label()],
          setSelect: [(plot) => this.owner.zoomTo(plot)],
          draw: [(plot) => this.owner.drawNotes(plot, this)],
        },
      },
      data,
      this.box,
    );
    this.plot.over.addEventListener('dblclick', () => this.owner.unzoom());
    this.names.replaceChildren();
    this.values = [];
    for (const line of drawing.lines) {
      if (line.isBound) continue;
      const number = element('b');
      this.values.push([number, line]);
      const mark = line.role ? sample(line.role, line.isReference) : square(line.fill);
      this.names.append(element('li', {}, mark, element('span', {}, line.label), number));
    }
  }

  // The values at the line that moves through the charts, else the last ones: all of one instant.
  label() {
    if (!this.drawing || !this.values) return;
    const { x, lines } = this.drawing;
    const pointedAt = this.plot.cursor.idx;
    const isPointedAt = isRead(pointedAt) && pointedAt < x.length;
    const place = isPointedAt ? pointedAt : lastPlaceOf(x, lines);
    const said = [];
    this.values.forEach(([number], index) => {
      const line = lines.filter((candidate) => !candidate.isBound)[index];
      const shown = line.say ? line.say(place) : this.format(valueAt(line.values, place));
      number.textContent = shown;
      said.push(`${line.label} ${shown}`);
    });
    this.when.textContent = `at ${clock(x[place])}`;
    this.box.setAttribute('aria-label', `${this.title} at ${clock(x[place])}: ${said.join(', ')}`);
  }

  tabulate() {
    if (!this.details.open || !this.drawing) return;
    const { x } = this.drawing;
    const lines = this.drawing.lines;
    const head = element('tr', {}, element('th', {}, 'at'));
    for (const line of lines) head.append(element('th', { class: 'n' }, line.label));
    const body = element('tbody');
    const step = Math.max(1, Math.ceil(x.length / ROWS_OF_NUMBERS));
    for (let place = x.length - 1; place >= 0; place -= step) {
      const row = element('tr', {}, element('td', {}, clock(x[place])));
      for (const line of lines) row.append(element('td', { class: 'n' }, this.format(valueAt(line.values, place))));
      body.append(row);
    }
    this.numbers.replaceChildren(element('thead', {}, head), body);
  }

  onKey(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 };
    if (event.key === 'Escape') this.owner.unzoom();
    if (!(event.key in steps) || !this.plot) return;
    event.preventDefault();
    const { x } = this.drawing;
    const before = this.plot.cursor.idx ?? x.length - 1;
    const place = Math.min(x.length - 1, Math.max(0, before + steps[event.key]));
    const left = this.plot.valToPos(x[place], 'x');
    // Told to the other charts too.
    this.plot.setCursor({ left, top: HEIGHT / 3 }, true, true);
  }
}

export class Charts {
  constructor(place, onZoom) {
    this.place = place;
    this.onZoom = onZoom;
    this.charts = [];
    this.views = {};
    this.shown = 'whole';
    this.zoom = null;
    this.notes = [];
    this.bounds = {};
    this.costPoints = [];
    this.reference = null;
    this.firstConnectS = null;
    new ResizeObserver(() => this.resize()).observe(place);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.rebuild());
  }

  take(document) {
    this.layout = document.layout;
    this.views = { whole: new View(document.whole, Infinity), recent: new View(document.recent, RECENT_S) };
    this.costPoints = document.cost_points;
    this.baselines = document.baselines;
    this.reference = document.reference;
    if (!this.charts.length) this.make();
  }

  add(news) {
    this.views.whole.add(news.whole);
    this.views.recent.add(news.recent);
    this.baselines = news.baselines;
    const last = this.costPoints.length ? this.costPoints[this.costPoints.length - 1].at_s : -1;
    const later = news.cost_points.filter((point) => point.at_s > last);
    this.costPoints = this.costPoints.concat(later).slice(-MOST_COST_POINTS);
  }

  make() {
    let first = 1;
    for (const panel of this.layout.panels) {
      const from = first;
      first += panel.lines.length;
      const draw = () => this.drawPanel(panel, from);
      this.charts.push(new Chart(this.place, panel.key, panel.title, panel.unit, draw, this));
      if (panel.key !== 'connections') continue;
      for (const kind of this.layout.counted) {
        const drawKind = () => this.drawCounts(kind);
        this.charts.push(new Chart(this.place, kind.key, kind.title, 'count', drawKind, this));
      }
      const drawCosts = () => this.drawCosts();
      this.charts.push(new Chart(this.place, 'cost', 'Cost of a connection, by the run so far', 'bytes', drawCosts, this));
    }
  }

  update() {
    for (const chart of this.charts) chart.update();
  }

  show(name) {
    this.shown = name;
    this.unzoom();
    this.update();
  }

  // The lines of a panel, of which the first is at `from` in a row.
  linesOf(panel, from, rows, widthS, baselines) {
    const lines = [];
    const times = rows.map((row) => row[0]);
    panel.lines.forEach((line, index) => {
      const below = panel.above_baseline ? baselines[line.key] || 0 : 0;
      const values = rows.map((row) => {
        if (row.length === 1) return null;
        return row[from + index] === null ? undefined : row[from + index] - below;
      });
      if (!values.some(isRead)) return;
      const [name, width, dash] = ROLES[line.role];
      const points = { show: false, filter: alone, size: 4 };
      const options = { stroke: colour(name), width, dash, points, spanGaps: false };
      const known = { ...line, values: withBreaks(times, values, widthS), options };
      // A logarithmic axis has no zero, and uPlot breaks on one.
      known.drawn = panel.logarithmic ? known.values.map((value) => (value === 0 ? undefined : value)) : known.values;
      known.values = valuesThatHold(known);
      lines.push(known);
    });
    return lines;
  }

  drawPanel(panel, from) {
    const view = this.views[this.shown];
    const rows = withGaps(view.rows, view.width_s);
    const lines = this.linesOf(panel, from, rows, view.width_s, this.baselines);
    if (!lines.length) return null;
    let x = rows.map((row) => row[0]);
    const under = this.referenceRows(x);
    if (under.length) {
      const pale = this.linesOf(panel, from, under, this.reference.width_s, this.reference.baselines);
      for (const line of pale) {
        line.label = `${line.label} · ${this.reference.file}`;
        line.isReference = true;
        line.options = { ...line.options, stroke: paler(ROLES[line.role][0]), width: REFERENCE_WIDTH };
      }
      const times = under.map((row) => row[0]);
      const both = [...new Set([...x, ...times])].sort((a, b) => a - b);
      movedTo(both, x, lines);
      movedTo(both, times, pale);
      x = both;
      lines.push(...pale);
    }
    return { x, lines, logarithmic: panel.logarithmic };
  }

  // The rows of the run that is laid under, on this run's clock and within its time.
  referenceRows(x) {
    if (!this.reference || this.firstConnectS === null || !x.length) return [];
    const later = this.firstConnectS - this.reference.first_connect_s;
    const moved = this.reference.rows.map((row) => [Math.round((row[0] + later) * 1000) / 1000, ...row.slice(1)]);
    // After its last row nothing was recorded.
    if (moved.length) moved.push([moved[moved.length - 1][0] + this.reference.width_s]);
    const within = moved.filter((row) => row[0] >= x[0] && row[0] <= x[x.length - 1]);
    return withGaps(within, this.reference.width_s);
  }

  drawCounts(kind) {
    const view = this.views[this.shown];
    const totals = {};
    for (const [, counts] of view.bars) {
      for (const [cause, number] of Object.entries(counts[kind.key] || {})) totals[cause] = (totals[cause] || 0) + number;
    }
    const causes = Object.keys(totals).sort((a, b) => totals[b] - totals[a] || a.localeCompare(b));
    if (!causes.length) return null;
    // A stretch without any is drawn as nothing, but has its place on the axis.
    const rows = view.rows;
    const x = [...new Set([rows[0][0], ...view.bars.map((bar) => bar[0]), rows[rows.length - 1][0]])].sort((a, b) => a - b);
    const at = new Map(view.bars.map(([t, counts]) => [t, counts[kind.key] || {}]));
    const lines = causes.map((cause, index) => ({
      label: `${causeOf(cause)} (${count(totals[cause])})`,
      fill: BARS[index % BARS.length],
      values: x.map((t) => (at.get(t) || {})[cause] || 0),
    }));
    // Stacked: the first is drawn last, in front of the sums behind it.
    let below = x.map(() => 0);
    for (const line of lines) {
      below = below.map((sum, place) => sum + line.values[place]);
      line.drawn = below;
      line.options = { stroke: colour(line.fill), fill: colour(line.fill), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.9, 14, 3] }) };
    }
    lines.reverse();
    return { x, lines };
  }

  // A wide interval is shown in place of its middle, as in the report; one that is unknown by now has
  // no number of before.
  costInWords(cost) {
    if (!cost) return 'unknown';
    const [value, low, high] = cost;
    const isSure = low > 0 && (high - low) / 2 <= this.layout.sure_share * value;
    return isSure ? bytes(value) : `${bytes(low)} to ${bytes(high)}`;
  }

  drawCosts() {
    const points = this.costPoints;
    // One cost, as of a run that was opened when it was over, is a tile and no line.
    if (points.length < 2) return null;
    const lines = [];
    const bands = [];
    for (const name of this.layout.costs) {
      if (!points.some((point) => point[name])) continue;
      const [label, role] = COST_LINES[name];
      const [stroke, width, dash] = ROLES[role];
      const part = (place) => points.map((point) => (point[name] ? point[name][place] : null));
      const bound = { stroke: 'transparent', width: 0, points: { show: false } };
      const first = lines.length + 1;
      lines.push({ label: `${label}: at most`, isBound: true, values: part(2), options: bound });
      lines.push({ label: `${label}: at least`, isBound: true, values: part(1), options: bound });
      const say = (place) => this.costInWords(points[place][name]);
      lines.push({ label, role, values: part(0), say, options: { stroke: colour(stroke), width, dash, points: { show: points.length < 40, size: 4 } } });
      bands.push({ series: [first, first + 1], fill: `${colour(stroke)}22` });
    }
    // All costs may be unknown so far.
    if (!lines.length) return null;
    return { x: points.map((point) => point.at_s), lines, bands };
  }

  // All charts show the same time.
  scale(plot) {
    const rows = this.views[this.shown].rows;
    if (!rows.length) return;
    const [low, high] = this.zoom || [rows[0][0], Math.max(rows[rows.length - 1][0], rows[0][0] + 10)];
    plot.setScale('x', { min: low, max: high });
  }

  zoomTo(plot) {
    if (plot.select.width < 4) return;
    this.zoom = [plot.posToVal(plot.select.left, 'x'), plot.posToVal(plot.select.left + plot.select.width, 'x')];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    for (const chart of this.charts) if (chart.plot) this.scale(chart.plot);
    this.onZoom(true);
  }

  unzoom() {
    this.zoom = null;
    for (const chart of this.charts) if (chart.plot) this.scale(chart.plot);
    this.onZoom(false);
  }

  // Events and findings are lines through all charts, and a limit is a line in its own.
  drawNotes(plot, chart) {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const note of this.notes) {
      const at = plot.valToPos(note.at_s, 'x', true);
      if (at < left || at > left + width) continue;
      ctx.strokeStyle = colour(note.colour);
      ctx.setLineDash(note.isEvent ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
      ctx.stroke();
    }
    for (const bound of this.bounds[chart.key] || []) {
      const at = plot.valToPos(bound, 'y', true);
      if (at < top || at > top + height) continue;
      ctx.strokeStyle = colour('kernel');
      ctx.setLineDash([8 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(left, at);
      ctx.lineTo(left + width, at);
      ctx.stroke();
    }
    ctx.restore();
  }

  resize() {
    for (const chart of this.charts) {
      if (chart.plot) chart.plot.setSize({ width: chart.box.clientWidth, height: HEIGHT });
    }
  }

  rebuild() {
    for (const chart of this.charts) chart.shape = '';
    this.update();
  }
}
