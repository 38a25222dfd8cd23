"use strict";
// Opens all details for printing, and closes them again after. The page works without it.
(() => {
  const closed = () => [...document.querySelectorAll("details:not([open])")];
  let opened = [];
  addEventListener("beforeprint", () => { opened = closed(); for (const one of opened) one.open = true; });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; opened = []; });
})();
