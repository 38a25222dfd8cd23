// Follows a stream of the server for as long as the page is open, and asks for the token where one
// is needed: what all live pages do.

import { Refused, follow, hasToken, keepToken, takeToken } from './stream.js';

const AGAIN_S = 2;
const at = (id) => document.getElementById(id);
let isFollowing = false;

export function tell(problem) {
  at('problem').hidden = !problem;
  at('problem').textContent = problem;
}

export function askForToken() {
  at('ask-token').hidden = false;
}

async function followOn(page) {
  if (isFollowing) return;
  isFollowing = true;
  for (;;) {
    try {
      if (page.load) await page.load();
      at('ask-token').hidden = true;
      tell('');
      await follow(page.events(), page.on);
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        askForToken();
        if (hasToken()) tell('The token of this tab is wrong: enter the one that the terminal printed, or open its link.');
        isFollowing = false;
        return;
      }
      if (error instanceof Refused) tell(error.message);
      else if (page.hasEnded && page.hasEnded()) tell('The run has ended, and asyncli has stopped to serve its page: what is shown stays as it is.');
      else tell(`asyncli does not answer (${error.message}); the page tries again`);
    }
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_S * 1000); });
  }
}

// `page.load()` gets what the page needs first, if anything; `page.events()` names the stream, and
// `page.on` has what is called for each of its events. `page.hasEnded()`: nothing new can come.
export function stay(page) {
  at('ask-token').addEventListener('submit', (event) => {
    event.preventDefault();
    keepToken(at('token').value.trim());
    at('ask-token').hidden = true;
    tell('');
    // Who may look without a token is following already.
    if (isFollowing && page.load) page.load();
    followOn(page);
  });
  // A new soak at the same address has a new token, whose link the browser opens without a reload.
  addEventListener('hashchange', () => {
    takeToken();
    at('ask-token').hidden = true;
    followOn(page);
  });
  takeToken();
  followOn(page);
}
