'use strict';
// Zoom by click, search with share. Every frame carries where it lies: x and w, parts of 1.
const svg = document.documentElement;
const frames = [...document.querySelectorAll('#frames g')];
const result = document.getElementById('result');
const WIDTH = Number(svg.dataset.width);
const LEFT = Number(svg.dataset.left);
const ADVANCE = Number(svg.dataset.advance);
const figure = (frame, key) => Number(frame.dataset[key]);

function addLabel(frame, rect) {
  const label = document.createElementNS('http://www.w3.org/2000/svg', 'text');
  label.setAttribute('y', Number(rect.getAttribute('y')) + 12.5);
  return frame.appendChild(label);
}

function zoom(to) {
  const start = to ? figure(to, 'x') : 0;
  const whole = to ? figure(to, 'w') : 1;
  const depth = to ? figure(to, 'd') : 0;
  for (const frame of frames) {
    const x = figure(frame, 'x');
    const w = figure(frame, 'w');
    const above = figure(frame, 'd') < depth && x <= start + 1e-9 && x + w >= start + whole - 1e-9;
    const inside = figure(frame, 'd') >= depth && x >= start - 1e-9 && x + w <= start + whole + 1e-9;
    frame.style.display = above || inside ? '' : 'none';
    frame.classList.toggle('above', above);
    if (!above && !inside) continue;
    const left = above ? LEFT : LEFT + ((x - start) / whole) * WIDTH;
    const width = above ? WIDTH : (w / whole) * WIDTH;
    const rect = frame.querySelector('rect');
    const label = frame.querySelector('text') ?? addLabel(frame, rect);
    rect.setAttribute('x', left.toFixed(2));
    rect.setAttribute('width', Math.max(0.3, width - (width > 3 ? 1 : 0)).toFixed(2));
    label.setAttribute('x', (left + 4).toFixed(2));
    const room = Math.floor((width - 8) / ADVANCE);
    const name = frame.dataset.name;
    label.textContent = room < 3 ? '' : name.length <= room ? name : `${name.slice(0, room - 1)}…`;
  }
}

function search() {
  const words = (prompt('Search functions (a regular expression):') ?? '').trim();
  let test = null;
  try {
    test = words ? new RegExp(words, 'i') : null;
  } catch {
    result.textContent = 'not a regular expression';
    return;
  }
  svg.classList.toggle('searched', test !== null);
  const found = [];
  for (const frame of frames) {
    const hit = test !== null && test.test(frame.dataset.name);
    frame.classList.toggle('hit', hit);
    if (hit) found.push([figure(frame, 'x'), figure(frame, 'x') + figure(frame, 'w')]);
  }
  // What lies in a frame that was found is not counted again.
  let share = 0;
  let end = 0;
  for (const [from, to] of found.sort((a, b) => a[0] - b[0] || b[1] - a[1])) {
    if (to <= end) continue;
    share += to - Math.max(from, end);
    end = to;
  }
  result.textContent = test === null ? '' : `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} % in ${found.length} frames`;
}

for (const frame of frames) frame.addEventListener('click', () => zoom(frame));
document.getElementById('reset').addEventListener('click', () => zoom(null));
document.getElementById('search').addEventListener('click', search);
document.addEventListener('keydown', (event) => {
  if (event.key === '/') { event.preventDefault(); search(); }
  if (event.key === 'Escape') zoom(null);
});
