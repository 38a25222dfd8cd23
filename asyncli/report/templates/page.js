"use strict";
// The page is whole without this. A browser that prints closed details as closed gets them open, and closed again after.
(() => {
  const closed = () => [...document.querySelectorAll("details:not([open])")];
  let opened = [];
  addEventListener("beforeprint", () => { opened = closed(); for (const one of opened) one.open = true; });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; opened = []; });
})();
