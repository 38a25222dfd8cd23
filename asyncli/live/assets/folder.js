// The start page of a folder: its runs, newest first, each a link to its live page.

import { count } from './format.js';
import { stay } from './stay.js';

const at = (id) => document.getElementById(id);
// href -> {row, said: what the row says}.
const rows = new Map();

const SAYS = { waiting: 'not read yet', empty: 'about to begin', running: 'running', cut: 'ended early' };

function cell(text, name = '', className = '') {
  const node = document.createElement('td');
  node.textContent = text;
  if (className) node.className = className;
  if (name) node.dataset.name = name;
  return node;
}

// What is said of a run's state, and how bad that is.
function stateOf(run) {
  if (run.state !== 'ended') return [SAYS[run.state], run.state === 'cut' ? 'warning' : ''];
  if (!run.verdict) return ['ended', ''];
  if (run.verdict.startsWith('failed')) return [run.verdict, 'error'];
  return [run.verdict, run.severity === 'warning' || run.severity === 'error' ? 'warning' : ''];
}

function fill(row, run) {
  const first = cell('', '', 'file');
  const began = run.began_s ? new Date(run.began_s * 1000).toLocaleString() : '';
  if (run.state === 'broken') {
    first.textContent = run.name;
    const why = cell(run.why, '', 'why');
    why.colSpan = 3;
    row.className = 'broken';
    row.replaceChildren(first, cell(began, 'written'), why);
    return;
  }
  const [state, severity] = stateOf(run);
  const says = cell('', 'state');
  says.append(Object.assign(document.createElement('b'), { textContent: state }));
  row.className = [run.state, severity].join(' ');
  // The link stays, which may be where the keyboard is.
  if (!row.querySelector('a')) {
    first.append(Object.assign(document.createElement('a'), { href: run.href, textContent: run.name }));
    row.replaceChildren(first);
  }
  while (row.children.length > 1) row.lastElementChild.remove();
  row.append(cell(began, 'began'), cell(run.server || '–', 'server'), cell(count(run.connections), 'connections', 'n'), says);
}

// "run/NAME/", with the run to be laid under it.
function addressOf(href) {
  const under = at('reference').value;
  return under && under !== href ? `${href}?reference=${under.slice('run/'.length, -1)}` : href;
}

function direct() {
  for (const [href, { row }] of rows) {
    const link = row.querySelector('a');
    if (link) link.href = addressOf(href);
  }
}

// The choice of a run to be laid under another one; a choice that was made stays.
function offer(runs) {
  const usable = runs.filter((run) => ['running', 'ended', 'cut'].includes(run.state));
  at('choose').hidden = usable.length < 2;
  const hrefs = usable.map((run) => run.href).join(' ');
  if (hrefs === offered) return;
  offered = hrefs;
  const chosen = at('reference').value;
  const none = at('reference').options[0];
  const options = usable.map((run) => Object.assign(document.createElement('option'), { value: run.href, textContent: run.name }));
  at('reference').replaceChildren(none, ...options);
  at('reference').value = usable.some((run) => run.href === chosen) ? chosen : '';
}

let offered = '';

// A row stays where it is, so that the keyboard's place in the list is kept.
function show(list) {
  at('folder').textContent = list.folder;
  document.title = `${list.runs.length} runs · asyncli`;
  const running = list.runs.filter((run) => run.state === 'running').length;
  const parts = [`${count(list.runs.length)} run files`];
  if (running) parts.push(`${count(running)} running`);
  if (list.left_out) parts.push(`${count(list.left_out)} older files are not listed; 'asyncli runs' lists all`);
  at('byline').textContent = parts.join(' · ');
  at('problem').hidden = !list.problem;
  at('problem').textContent = list.problem;
  at('runs').hidden = !list.runs.length;
  at('none').hidden = list.runs.length > 0;
  const body = at('runs').tBodies[0];
  const gone = new Set(rows.keys());
  let place = body.firstElementChild;
  for (const run of list.runs) {
    gone.delete(run.href);
    const said = JSON.stringify(run);
    const known = rows.get(run.href) || { row: document.createElement('tr'), said: '' };
    rows.set(run.href, known);
    if (known.said !== said) fill(known.row, run);
    known.said = said;
    if (known.row === place) place = place.nextElementSibling;
    else body.insertBefore(known.row, place);
  }
  for (const href of gone) {
    rows.get(href).row.remove();
    rows.delete(href);
  }
  offer(list.runs);
  direct();
}

at('reference').addEventListener('change', direct);

stay({ events: () => 'events', on: { runs: show, still() {} } });
