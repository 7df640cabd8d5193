// Buttons that take each other's place.

/** Shows one button instead of another; the keyboard's focus goes with it. */
export function swap(hidden, shown) {
  const focused = document.activeElement === hidden;
  shown.hidden = false;
  // Before the other is hidden: the focus would go back to the top of the page.
  if (focused) shown.focus();
  hidden.hidden = true;
}
