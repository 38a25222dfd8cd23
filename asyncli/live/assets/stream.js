// Asks the server. The token, if there is one, is in the page's address after '#', which no browser
// sends; it is kept for this tab only.

const KEY = 'asyncli-token';

export class Refused extends Error {
  constructor(status, why) {
    super(why);
    this.status = status;
  }
}

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, '', location.pathname + location.search);
  }
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(), cache: 'no-store' });
  if (answer.ok) return answer;
  let why = answer.statusText;
  try {
    why = (await answer.json()).error;
  } catch {
    // It was no JSON: the status has to do.
  }
  throw new Refused(answer.status, why);
}

// Calls `on[event](data)` for each server-sent event until the stream ends, and yields nothing else.
// EventSource cannot send a token.
export async function follow(path, on, signal) {
  const answer = await ask(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    unread += value;
    let end = unread.indexOf('\n\n');
    while (end >= 0) {
      const [event, data] = unread.slice(0, end).split('\n');
      unread = unread.slice(end + 2);
      on[event.replace('event: ', '')](JSON.parse(data.replace('data: ', '')));
      end = unread.indexOf('\n\n');
    }
  }
}
