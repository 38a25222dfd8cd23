// The live page of one run.

import { Charts } from './charts.js';
import { bytes, causeOf, clock, cores, count, duration, milliseconds } from './format.js';
import { askForToken, stay, tell } from './stay.js';
import { Refused, ask, hasToken } from './stream.js';

const at = (id) => document.getElementById(id);
const charts = new Charts(at('charts'), (isZoomed) => { at('unzoom').hidden = !isZoomed; });

const AT_THE_END = 'at the end of the hold';

let isPaused = false;
let edition = -1;

function number(name, value, more = '', isBad = false) {
  const place = document.createElement('div');
  const term = document.createElement('dt');
  const said = document.createElement('dd');
  term.textContent = name;
  said.textContent = value;
  if (more) {
    const small = document.createElement('small');
    small.textContent = more;
    said.append(small);
  }
  place.className = isBad ? 'bad' : '';
  place.append(term, said);
  return place;
}

function causes(counts) {
  const all = Object.entries(counts).sort((a, b) => b[1] - a[1]);
  return all.map(([cause, many]) => `${count(many)} ${causeOf(cause)}`).join(', ');
}

// What is unknown so far says nothing here; the report says why.
function drift(words) {
  return !words || words.startsWith('unknown') ? '' : words;
}

// After the drain none is held, which says nothing of the run.
function heldNumber(state) {
  const asked = `of ${count(state.asked)} asked for`;
  if (!state.ending) return number('held', count(state.held), asked);
  const isShort = state.ending.held !== null && state.ending.held < state.asked;
  return number('held at the end of the hold', count(state.ending.held), asked, isShort);
}

// After the end nobody is to come back.
function awayNumbers(state) {
  if (state.over || state.ending) return [];
  const numbers = [];
  const silent = state.silent ? `${count(state.silent)} of them silent` : 'not to be back yet';
  if (state.away) numbers.push(number('away by the plan\'s events', count(state.away), silent));
  if (state.not_back) numbers.push(number('not back from the plan\'s events', count(state.not_back), 'though it was their turn', true));
  return numbers;
}

function showNumbers(state) {
  const numbers = [
    heldNumber(state),
    ...awayNumbers(state),
    number('lost', count(state.lost), causes(state.deaths), state.lost > 0),
    number('failed to connect', count(state.failed), causes(state.failures), state.failed > 0),
  ];
  const { active } = state.ending || state;
  if (active !== null) numbers.push(number('by the server\'s count', count(active), state.ending ? AT_THE_END : ''));
  if (state.phase === 'ramp') numbers.push(number('opened a second', count(state.achieved_per_s), `${count(state.asked_per_s)} asked for`));
  if (state.unanswered && !state.ending) numbers.push(number('wait for an answer', count(state.unanswered), `the longest ${duration(state.longest_wait_s)}`, true));
  const times = state.ending || state;
  if (times.latency_p50_ms !== null) {
    // The same quantile of the same seconds: the two are compared.
    const ofWhen = state.ending ? 'whole run' : 'last\u00a010\u00a0s';
    numbers.push(number('latency, 99 of 100 below', milliseconds(times.latency_p99_ms), `half below ${milliseconds(times.latency_p50_ms)}; ${ofWhen}`));
    numbers.push(number('asyncli\'s own lateness, 99 of 100 below', milliseconds(times.lateness_p99_ms), ofWhen));
  }
  numbers.push(...costNumbers(state));
  const memory = (state.ending || state).server_bytes;
  const about = [state.ending ? AT_THE_END : '', drift(state.drifts.server_user)].filter((part) => part).join('; ');
  if (memory !== null) numbers.push(number('memory of the server', bytes(memory), about));
  at('numbers').replaceChildren(...numbers, ...useNumbers(state));
}

// What a connection costs on the host in all, else what the report names first: what it keeps alive
// in a collected heap, or what it costs in the server.
function costNumbers(state) {
  const isOld = state.cost_at_s !== null && !state.ending;
  const age = isOld ? `${duration(state.elapsed_s - state.cost_at_s)} ago` : '';
  const said = (...parts) => parts.filter((part) => part).join('; ');
  const numbers = [];
  if (state.in_heap) numbers.push(number('a connection keeps alive in the heap', state.in_heap.words, age));
  if (state.total) numbers.push(number('a connection costs', state.total.words, age));
  else if (state.in_server && !state.in_heap) numbers.push(number('a connection costs in the server', state.in_server.words, said(age, `on the host in all: ${state.cost_unknown || 'unknown, other programs may be in it'}`)));
  else if (state.cost_unknown && !state.in_heap) numbers.push(number('a connection costs', 'unknown', state.cost_unknown));
  return numbers;
}

// What is in use now, which says nothing of a run that has ended.
function useNumbers(state) {
  const numbers = [];
  if (state.ending) return numbers;
  if (state.server_cpu_share !== null) numbers.push(number('CPU of the server', cores(state.server_cpu_share)));
  if (state.generator_bytes !== null) numbers.push(number('asyncli itself', bytes(state.generator_bytes), `${cores(state.generator_cpu_share)}, ${count(state.workers)} ${state.workers === 1 ? 'worker' : 'workers'}`));
  return numbers;
}

function showPhase(state) {
  const phases = { baseline: 'baseline', ramp: 'ramp', hold: 'hold', drain: 'drain', residue: 'after the drain' };
  const verdict = state.ending ? state.ending.verdict : '';
  const isOf = state.over ? 'ended' : phases[state.phase] || 'starting';
  at('phase').textContent = verdict || isOf;
  at('phase').className = verdict;
  const parts = [clock(state.elapsed_s)];
  if (verdict) parts.push(`${state.ending.why}${besideOf(state.ending)}`);
  else if (state.why_ended) parts.push(state.why_ended);
  else if (state.eta_s !== null) parts.push(`${duration(state.eta_s)} left`);
  if (state.until && state.phase === 'hold') parts.push(`until ${state.until}`);
  at('left').textContent = parts.join(' · ');
  const bar = at('progress');
  bar.hidden = state.over;
  if (state.progress === null) bar.removeAttribute('value');
  else bar.value = state.progress;
  document.title = `${state.over ? verdict || 'ended' : count(state.held)} · asyncli`;
}

// A pass may have an error or a warning beside it, which are below.
function besideOf(ending) {
  return ending.beside ? `, ${ending.beside} below` : '';
}

function showLimits({ limits, ending }) {
  at('limits').hidden = !limits.length;
  at('limit-value').textContent = ending ? 'value' : 'so far';
  const rows = limits.map((limit) => {
    const row = document.createElement('tr');
    const kept = ending ? 'kept' : 'kept so far';
    const state = { true: 'crossed', false: kept }[limit.crossed] || 'undecided';
    const share = limit.share === null ? '–' : percent(limit.share);
    const age = limit.age_s === null || ending ? '' : ` (${duration(limit.age_s)} ago)`;
    const amount = limit.amount ? `${limit.amount}${age}` : 'not computed yet';
    for (const [text, kind] of [[limit.text, ''], [amount, ''], [share, limit.share === null ? 'n none' : 'n'], [state, '']]) {
      const cell = document.createElement('td');
      cell.className = kind;
      if (text === 'crossed') cell.append(Object.assign(document.createElement('b'), { textContent: text }));
      else cell.textContent = text;
      row.append(cell);
    }
    row.className = limit.crossed ? 'error' : '';
    return row;
  });
  at('limits').tBodies[0].replaceChildren(...rows);
  charts.bounds = {};
  for (const limit of limits) {
    if (limit.key && limit.key.startsWith('heartbeats.latency_ms.')) charts.bounds.latency = [...(charts.bounds.latency || []), limit.bound];
  }
}

function tableRow(texts, numbers, className = '') {
  const row = document.createElement('tr');
  texts.forEach((text, place) => {
    const cell = document.createElement('td');
    cell.className = numbers.includes(place) ? 'n' : '';
    cell.textContent = text;
    row.append(cell);
  });
  row.className = className;
  return row;
}

// "18.2 GB", "3,064 descriptors".
function inUnit(value, unit) {
  return unit === 'bytes' ? bytes(value) : `${count(value)} ${unit}`;
}

function percent(share) {
  const digits = share < 0.1 ? 1 : 0;
  return `${(100 * share).toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits })} %`;
}

function showComebacks({ comebacks }) {
  at('comebacks').parentElement.hidden = !comebacks.length;
  at('comebacks').tBodies[0].replaceChildren(...comebacks.map((event) => {
    const counts = [event.took, event.silent, event.back].map(count);
    return tableRow([clock(event.at_s), event.text, ...counts], [0, 2, 3, 4]);
  }));
}

function showGenerator(state) {
  const { hosts, limits, limits_left_out: leftOut } = state.generator;
  at('generator').hidden = !state.workers && !limits.length;
  const parts = [`${count(state.workers)} worker ${state.workers === 1 ? 'process' : 'processes'}`];
  if (state.generator_bytes !== null) parts.push(`${bytes(state.generator_bytes)} of memory`);
  if (state.generator_cpu_share !== null) parts.push(cores(state.generator_cpu_share));
  at('workers').textContent = parts.join(' · ');
  at('hosts').hidden = !hosts.length;
  at('hosts').tBodies[0].replaceChildren(...hosts.map((host) => {
    const name = host.joined_later ? `${host.name} (joined later)` : host.name;
    // It was not looked for more room than the plan needs.
    const room = host.room !== null && host.room >= state.asked ? 'all' : count(host.room);
    return tableRow([name, count(host.workers), count(host.connections), room], [1, 2, 3]);
  }));
  at('room').hidden = !limits.length;
  at('room').tBodies[0].replaceChildren(...limits.map((limit) => {
    const by = limit.is_planned ? 'the plan' : 'the last sample';
    const isFull = limit.is_short || limit.share > 1;
    return tableRow([limit.name, limit.unit === 'bytes' ? bytes(limit.used) : count(limit.used), inUnit(limit.has, limit.unit), percent(limit.share), by], [1, 2, 3], isFull ? 'full' : '');
  }));
  at('more-room').hidden = !leftOut;
  at('more-room').textContent = `${count(leftOut)} further limits have more room.`;
}

function showNotes(state) {
  const notes = [];
  for (const event of state.events) notes.push({ at_s: event.at_s, severity: event.kind, text: event.text, more: '', colour: 'ours', isEvent: true });
  for (const finding of state.findings) {
    const colours = { error: 'kernel', warning: 'violet', info: 'rest' };
    notes.push({ at_s: finding.at_s, severity: finding.severity, text: finding.evidence, more: finding.remedy, colour: colours[finding.severity], isEvent: false });
  }
  // What the report found has no instant, and comes first.
  const place = (note) => (note.at_s === null ? Infinity : note.at_s);
  notes.sort((a, b) => (place(a) === place(b) ? 0 : place(b) - place(a)));
  charts.notes = notes.filter((note) => note.severity !== 'info' && note.at_s !== null);
  at('no-notes').hidden = notes.length > 0;
  at('notes').parentElement.hidden = notes.length === 0;
  const rows = notes.map((note) => {
    const row = document.createElement('tr');
    row.className = note.severity;
    const when = document.createElement('td');
    when.className = 'n';
    when.textContent = note.at_s === null ? 'at the end' : clock(note.at_s);
    const what = document.createElement('td');
    // Such as "drop 30%".
    const namesItself = note.isEvent && note.text.startsWith(note.severity);
    if (!namesItself) what.append(Object.assign(document.createElement('b'), { textContent: `${note.severity}: ` }));
    what.append(note.text);
    if (note.more) what.append(Object.assign(document.createElement('small'), { textContent: note.more }));
    row.append(when, what);
    return row;
  });
  at('notes').tBodies[0].replaceChildren(...rows);
}

let known = '';

function show(state) {
  charts.firstConnectS = state.first_connect_s;
  showPhase(state);
  showNumbers(state);
  showLimits(state);
  showComebacks(state);
  const notes = JSON.stringify([state.events, state.findings]);
  if (notes !== known) showNotes(state);
  known = notes;
  showGenerator(state);
  const canEnd = canStop && !state.over && ['baseline', 'ramp', 'hold'].includes(state.phase);
  at('stop').hidden = !canEnd || !isOwner;
  at('mark').hidden = state.over || !isOwner;
  at('not-owner').hidden = state.over || isOwner;
  at('wrong-token').hidden = isOwner || !hasToken();
  isOver = state.over;
}

let canStop = false;
let isOwner = false;
let isOver = false;

function showReference({ reference, why_no_reference: why }) {
  at('reference').hidden = !reference && !why;
  if (!reference) {
    at('reference').textContent = why && `No run is laid under it: ${why}`;
    return;
  }
  const began = new Date(reference.began_s * 1000).toLocaleString();
  at('reference').textContent = `Wide and pale: ${reference.file}, from its first connect on · began ${began} · ${count(reference.lost)} lost, ${count(reference.failed)} failed of ${count(reference.asked)}`;
}

async function load() {
  const document_ = await (await ask(`history${location.search}`)).json();
  edition = document_.edition;
  canStop = document_.can_stop;
  isOwner = document_.is_owner;
  const { run } = document_;
  at('target').textContent = run.targets.join(', ');
  const began = new Date(run.began_s * 1000);
  at('byline').textContent = `${run.file} · ${run.protocol} · began ${began.toLocaleString()}`;
  showReference(document_);
  at('all-runs').hidden = !document_.in_folder;
  charts.take(document_);
  if (isPaused) return;
  show(document_.state);
  charts.update();
}

function view(name) {
  for (const other of ['whole', 'recent']) at(`view-${other}`).setAttribute('aria-pressed', String(other === name));
  charts.show(name);
}

async function act(work, said) {
  try {
    await work();
    at('done').textContent = said;
    at('ask-token').hidden = true;
  } catch (error) {
    const isStranger = error instanceof Refused && error.status === 401;
    at('done').textContent = isStranger ? 'This needs the token of the page: enter it above.' : error.message;
    if (isStranger) askForToken();
  }
}

async function save(name) {
  at('done').textContent = 'The report is being made…';
  await act(async () => {
    const answer = await ask(`download/${name}`);
    const file = /filename="([^"]+)"/.exec(answer.headers.get('Content-Disposition'))[1];
    const link = document.createElement('a');
    link.href = URL.createObjectURL(await answer.blob());
    link.download = file;
    link.click();
    URL.revokeObjectURL(link.href);
  }, 'Saved.');
}

at('view-whole').addEventListener('click', () => view('whole'));
at('view-recent').addEventListener('click', () => view('recent'));
at('unzoom').addEventListener('click', () => charts.unzoom());
at('pause').addEventListener('click', () => {
  isPaused = !isPaused;
  at('pause').setAttribute('aria-pressed', String(isPaused));
  if (!isPaused) charts.update();
});
at('get-page').addEventListener('click', () => save('report.html'));
at('get-json').addEventListener('click', () => save('report.json'));
at('get-csv').addEventListener('click', () => save('tables.zip'));
at('mark').addEventListener('submit', (event) => {
  event.preventDefault();
  act(() => ask('mark', { method: 'POST', body: at('mark-text').value }), 'Marked.');
});
at('stop').addEventListener('click', () => at('sure').showModal());
at('sure').addEventListener('close', () => {
  if (at('sure').returnValue === 'yes') act(() => ask('stop', { method: 'POST' }), 'The hold ends.');
});
at('give-token').addEventListener('click', () => {
  askForToken();
  at('token').focus();
});
stay({
  load,
  // A page goes with its soak, whose end it has shown.
  hasEnded: () => isOver,
  events: () => `events?edition=${edition}`,
  on: {
    news(news) {
      tell('');
      charts.add(news);
      if (isPaused) return;
      show(news.state);
      charts.update();
    },
    again: load,
    problem(problem) {
      tell(problem.error);
    },
  },
});
