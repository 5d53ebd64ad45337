// Colours, and the picture on the canvas.

const ROW = 20;
const NARROWEST = 0.5;
const FONT = '11.5px ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const HUES = [24, 206, 152, 268, 338, 46, 182, 96];

function hash(text) {
  let value = 2166136261;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 16777619);
  return value >>> 0;
}

/** Colours of nodes: by file, or by growth; steady from one picture to the next. */
class Palette {
  constructor(tree, dark) {
    this.tree = tree;
    this.dark = dark;
    this.cache = new Map();
    const weights = new Map();
    for (let node = 1; node < tree.size; node++) {
      const module = tree.module[node];
      if (module < 0) continue;
      const own = tree.total[node];
      weights.set(module, (weights.get(module) ?? 0) + own);
    }
    this.ranked = [...weights.entries()].sort((a, b) => b[1] - a[1]).map(([module]) => module);
    this.hue = new Map();
    let next = 0;
    for (const module of this.ranked) {
      if (isCLibrary(tree.data.modules[module])) continue;
      if (next < HUES.length) this.hue.set(module, HUES[next++]);
    }
    this.most = mostGrowth(tree);
  }

  byModule(node) {
    const { tree, dark } = this;
    const key = tree.name[node] * (tree.data.modules.length + 1) + tree.module[node];
    let colour = this.cache.get(key);
    if (colour === undefined) {
      const hue = this.hue.get(tree.module[node]);
      const shade = hash(tree.nameOf(node)) % 9;
      colour = hue === undefined
        ? `hsl(220 6% ${dark ? 26 + shade * 0.7 : 84 - shade * 0.8}%)`
        : `hsl(${hue + shade - 4} ${dark ? '42%' : '74%'} ${dark ? 30 + shade : 78 - shade}%)`;
      this.cache.set(key, colour);
    }
    return colour;
  }

  byGrowth(node) {
    return this.growthColour(this.tree.growth[node] / this.most);
  }

  /** From -1 (shrunk most) over 0 to 1 (grown most); roots make small changes visible. */
  growthColour(ratio) {
    const part = Math.sqrt(Math.min(1, Math.abs(ratio)));
    if (part < 0.02) return this.dark ? 'hsl(220 6% 28%)' : 'hsl(220 8% 88%)';
    const hue = ratio > 0 ? 10 : 212;
    return this.dark
      ? `hsl(${hue} ${20 + 45 * part}% ${28 + 12 * part}%)`
      : `hsl(${hue} ${30 + 55 * part}% ${88 - 24 * part}%)`;
  }
}

/** The largest growth of anything that is not just about everything. */
function mostGrowth(tree) {
  let most = 0;
  for (let node = 1; node < tree.size; node++) {
    if (tree.total[node] < 0.95 * tree.total[0]) most = Math.max(most, Math.abs(tree.growth[node]));
  }
  return most || Math.abs(tree.growth[0]) || 1;
}

/** As much of a name's end as has room: what is left out first are the outer scopes. */
function brief(name, room) {
  if (name.length <= room) return name;
  let nesting = 0;
  for (let at = 0; at + 2 < name.length; at++) {
    const character = name[at];
    if (character === '<' || character === '(') nesting++;
    else if (character === '>' || character === ')') nesting--;
    else if (character === ':' && name[at + 1] === ':' && nesting <= 0 && name.length - at - 2 <= room) {
      return name.slice(at + 2);
    }
  }
  const last = name.lastIndexOf('::');
  const end = last >= 0 && !/[>)]/.test(name.slice(last)) ? name.slice(last + 2) : name;
  return end.length <= room ? end : `${end.slice(0, room - 1)}…`;
}

function isCLibrary(path) {
  return /(^|\/)(libc\.so|libc-2|ld-linux|ld-musl|libpthread)/.test(path);
}

/** What is drawn, in rows of boxes from left to right, for clicks and arrow keys. */
class Picture {
  constructor(canvas) {
    this.canvas = canvas;
    this.rows = [];
  }

  /** view: tree, zoom, width, colour(node), hits, selected, flipped, dark, scale, ink. */
  draw(view) {
    this.view = view;
    this.rows = layRows(view);
    const height = this.rows.length * ROW;
    const { canvas } = this;
    const scale = Math.min(view.scale, 16000 / Math.max(height, view.width, 1));
    canvas.width = Math.max(1, Math.round(view.width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    canvas.style.height = `${height}px`;
    const context = canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = FONT;
    context.textBaseline = 'middle';
    const advance = context.measureText('M').width;
    this.rows.forEach((row, depth) => {
      const y = (view.flipped ? this.rows.length - 1 - depth : depth) * ROW;
      for (const box of row) this.drawBox(context, box, y, advance);
    });
  }

  drawBox(context, box, y, advance) {
    const { view } = this;
    const { node, x, width } = box;
    const gap = width > 3 ? 1 : 0;
    const dimmed = view.hits !== null && !view.hits[node];
    context.globalAlpha = box.rest ? 0.45 : dimmed ? 0.38 : box.above ? 0.6 : 1;
    context.fillStyle = box.rest ? view.ink.rest : view.hits !== null && !dimmed ? view.ink.hit : view.colour(node);
    context.fillRect(x, y, width - gap, ROW - 1);
    if (node === view.selected && !box.rest) {
      context.globalAlpha = 1;
      context.strokeStyle = view.ink.text;
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.75, y + 0.75, Math.max(1, width - gap - 1.5), ROW - 2.5);
    }
    const room = Math.floor((width - 9) / advance);
    if (box.rest || room < 3) return;
    const text = brief(view.tree.nameOf(node), room);
    context.globalAlpha = dimmed ? 0.6 : 1;
    context.fillStyle = view.hits !== null && !dimmed ? view.ink.hitText : view.ink.text;
    // Names may hold characters of any width.
    context.save();
    context.beginPath();
    context.rect(x, y, width - 3, ROW);
    context.clip();
    context.fillText(text, x + 5, y + ROW / 2 - 0.5);
    context.restore();
  }

  /** The box at a point of the canvas, in CSS pixels. */
  at(x, y) {
    const row = Math.floor(y / ROW);
    const depth = this.view.flipped ? this.rows.length - 1 - row : row;
    const boxes = this.rows[depth] ?? [];
    let low = 0;
    let high = boxes.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (boxes[middle].x + boxes[middle].width <= x) low = middle + 1;
      else high = middle;
    }
    const box = boxes[low];
    return box && box.x <= x && !box.rest ? box.node : -1;
  }

  boxOf(node) {
    const depth = this.view.tree.depth[node];
    return (this.rows[depth] ?? []).find((box) => box.node === node && !box.rest) ?? null;
  }
}

/** Boxes per depth. What is too narrow to be seen is one grey box at the end of its row. */
function layRows(view) {
  const { tree, zoom, width } = view;
  const whole = tree.total[zoom];
  if (!(whole > 0)) return [[{ node: 0, x: 0, width }]];
  const scale = width / whole;
  const rows = tree.path(zoom).slice(1).reverse().map((node) => [{ node, x: 0, width, above: true }]);
  let level = [{ node: zoom, x: 0, width }];
  while (level.length) {
    rows.push(level);
    const next = [];
    for (const box of level) {
      if (box.rest) continue;
      for (const child of tree.childrenOf(box.node)) {
        const x = (tree.start[child] - tree.start[zoom]) * scale;
        const wide = tree.total[child] * scale;
        if (wide >= NARROWEST) {
          next.push({ node: child, x, width: wide });
          continue;
        }
        // Children come by size: none of those that follow can be seen either.
        let end = tree.start[box.node];
        for (const each of tree.childrenOf(box.node)) end += Math.max(0, tree.total[each]);
        const rest = (end - tree.start[zoom]) * scale - x;
        if (rest >= NARROWEST) next.push({ node: child, x, width: rest, rest: true });
        break;
      }
    }
    level = next;
  }
  return rows;
}
