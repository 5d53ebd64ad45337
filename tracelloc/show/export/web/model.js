'use strict';
// The tree of call stacks in columns, and where its frames lie. Knows nothing of the page.

/** Bytes in binary units, three significant digits, as the reports have them. */
function formatSize(bytes) {
  const sign = bytes < 0 ? '-' : '';
  let value = Math.abs(bytes);
  if (value < 1024) return `${sign}${value} B`;
  for (const unit of ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB']) {
    value /= 1024;
    if (value < 1023.5 || unit === 'EiB') {
      return `${sign}${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`;
    }
  }
  return '';
}

function formatFigure(value, unit) {
  if (unit === 'blocks') return value.toLocaleString('en-US');
  return formatSize(value) + (unit === 'bytes/min' ? '/min' : '');
}

function formatShare(part, whole) {
  if (!whole) return '–';
  const share = (100 * part) / whole;
  return `${share >= 99.95 ? 100 : share.toFixed(share < 10 ? 2 : 1)} %`;
}

class Tree {
  /** A tree from the page's data: a symbol per node, parents first, and figures per stack. */
  static fromData(data) {
    const tree = new Tree(data, data.up.length);
    tree.parent = Int32Array.from(data.up, (up, node) => node - up);
    for (const key of ['name', 'module', 'place']) {
      tree[key] = Int32Array.from(data.symbol, (symbol) => data[key][symbol]);
    }
    const perNode = (figures) => {
      const column = new Float64Array(tree.size);
      let node = 0;
      data.ends.forEach((step, at) => { column[node += step] = figures[at]; });
      return column;
    };
    tree.own = data.metrics.map((metric) => perNode(metric.own));
    tree.ownGrowth = perNode(data.growth);
    return tree.finish();
  }

  constructor(data, size) {
    this.data = data;
    this.size = size;
  }

  /** The same stacks read from the allocating function on. */
  inverted() {
    const modules = this.data.modules.length + 1;
    const kinds = this.data.names.length * modules + modules;
    const known = new Map();
    const columns = { parent: [0], name: [this.name[0]], module: [this.module[0]], place: [-1] };
    const own = this.own.map(() => [0]);
    const growth = [0];
    for (let node = 1; node < this.size; node++) {
      if (!this.ownGrowth[node] && this.own.every((column) => !column[node])) continue;
      let at = 0;
      for (let from = node; from !== 0; from = this.parent[from]) {
        const key = at * kinds + this.name[from] * modules + this.module[from] + 1;
        let next = known.get(key);
        if (next === undefined) {
          next = columns.parent.length;
          known.set(key, next);
          columns.parent.push(at);
          for (const part of ['name', 'module', 'place']) columns[part].push(this[part][from]);
          for (const column of own) column.push(0);
          growth.push(0);
        }
        at = next;
      }
      own.forEach((column, metric) => { column[at] += this.own[metric][node]; });
      growth[at] += this.ownGrowth[node];
    }
    const tree = new Tree(this.data, columns.parent.length);
    for (const key of Object.keys(columns)) tree[key] = Int32Array.from(columns[key]);
    tree.own = own.map((column) => Float64Array.from(column));
    tree.ownGrowth = Float64Array.from(growth);
    return tree.finish();
  }

  /** Depths and totals. Children have higher numbers than their parents. */
  finish() {
    this.depth = new Int32Array(this.size);
    for (let node = 1; node < this.size; node++) this.depth[node] = this.depth[this.parent[node]] + 1;
    const sums = (own) => {
      const total = own.slice();
      for (let node = this.size - 1; node > 0; node--) total[this.parent[node]] += total[node];
      return total;
    };
    this.totals = this.own.map(sums);
    this.growth = sums(this.ownGrowth);
    return this;
  }

  /** Puts children side by side, the largest first, by this metric. */
  arrange(metric) {
    const total = this.totals[metric];
    const first = new Int32Array(this.size + 1);
    for (let node = 1; node < this.size; node++) first[this.parent[node] + 1]++;
    for (let node = 0; node < this.size; node++) first[node + 1] += first[node];
    const fill = first.slice();
    const children = new Int32Array(Math.max(0, this.size - 1));
    for (let node = 1; node < this.size; node++) children[fill[this.parent[node]]++] = node;
    this.start = new Float64Array(this.size);
    for (let node = 0; node < this.size; node++) {
      const mine = children.subarray(first[node], first[node + 1]);
      if (mine.length > 1) mine.sort((a, b) => total[b] - total[a] || a - b);
      let x = this.start[node];
      for (const child of mine) {
        this.start[child] = x;
        x += total[child];
      }
    }
    this.total = total;
    this.first = first;
    this.children = children;
  }

  childrenOf(node) {
    return this.children.subarray(this.first[node], this.first[node + 1]);
  }

  /** The node and its callers up to the root. */
  path(node) {
    const nodes = [node];
    while (nodes[nodes.length - 1] !== 0) nodes.push(this.parent[nodes[nodes.length - 1]]);
    return nodes;
  }

  nameOf(node) {
    return this.data.names[this.name[node]];
  }

  moduleOf(node) {
    return this.module[node] < 0 ? '' : this.data.modules[this.module[node]];
  }

  placeOf(node) {
    return this.place[node] < 0 ? '' : this.data.places[this.place[node]];
  }

  /** The node with the same names on its way to the root, as far as there is one. */
  find(names) {
    let at = 0;
    for (const name of names) {
      const next = this.childrenOf(at).find((child) => this.nameOf(child) === name);
      if (next === undefined) break;
      at = next;
    }
    return at;
  }

  /** What a search finds: nodes, and how much of everything is below or in them. */
  search(words) {
    const hits = new Uint8Array(this.size);
    const within = new Uint8Array(this.size);
    const test = matcher(words);
    if (test === null) return null;
    const names = this.data.names.map((name) => test(name));
    const modules = this.data.modules.map((name) => test(name));
    let sum = 0;
    let count = 0;
    for (let node = 1; node < this.size; node++) {
      const parent = this.parent[node];
      within[node] = within[parent] | hits[parent];
      if (!(this.total[node] > 0)) continue;
      if (!names[this.name[node]] && !(this.module[node] >= 0 && modules[this.module[node]])) continue;
      hits[node] = 1;
      count++;
      if (!within[node]) sum += this.total[node];
    }
    return { hits, sum, count };
  }
}

/** Part of a name, in any case; between slashes a regular expression. null: it is none. */
function matcher(words) {
  if (words.length > 1 && words.startsWith('/') && words.endsWith('/')) {
    try {
      const expression = new RegExp(words.slice(1, -1), 'i');
      return (name) => expression.test(name);
    } catch {
      return null;
    }
  }
  const part = words.toLowerCase();
  return (name) => name.toLowerCase().includes(part);
}
