// The page: what is shown, and what keys, mouse and buttons change of it.

const $ = (id) => document.getElementById(id);

class Page {
  constructor(data) {
    this.picture = new Picture($('canvas'));
    this.colours = data.difference ? 'growth' : 'module';
    this.isInverted = false;
    this.flipped = false;
    this.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    this.zoom = 0;
    this.selected = 0;
    this.hover = -1;
    this.words = '';
    this.load(data);
    this.listen();
    this.refresh();
  }

  /** Takes new data; what was zoomed to stays, if it is still there. */
  load(data) {
    const names = this.tree ? this.namesTo(this.zoom) : [];
    const chosen = this.tree ? this.namesTo(this.selected) : [];
    const key = this.data ? this.data.metrics[this.metric].key : data.metric;
    this.metric = Math.max(0, data.metrics.findIndex((metric) => metric.key === key));
    this.data = data;
    this.upright = Tree.fromData(data);
    this.reversed = null;
    this.choose();
    this.zoom = this.tree.find(names);
    this.selected = this.tree.find(chosen);
    this.hover = -1;
    document.title = `${data.title} – heap`;
    $('title').replaceChildren(data.title, ' ', element('span', `process ${data.pid}`));
    $('notes').textContent = data.notes.join('; ');
    this.showSuspects();
    $('metrics').replaceChildren(...data.metrics.map((metric, at) => {
      const button = element('button', metric.short);
      button.type = 'button';
      button.title = `${metric.name} (m)`;
      button.setAttribute('role', 'radio');
      button.addEventListener('click', () => this.setMetric(at));
      return button;
    }));
  }

  /** What leaks or may leak, above the graph; a click leads to it. */
  showSuspects() {
    $('suspects').replaceChildren(...this.data.suspects.map((suspect) => {
      const button = element('button', '');
      button.type = 'button';
      button.append(element('b', suspect.name), ` ${suspect.headline}`);
      for (const sentence of suspect.why) button.append(element('small', sentence));
      button.addEventListener('click', () => this.goTo(suspect));
      return button;
    }));
  }

  goTo(suspect) {
    if (this.isInverted) this.setInverted(false);
    $('search').value = suspect.search ?? '';
    this.search(suspect.search ?? '');
    this.zoomTo(suspect.search === null ? this.tree.find(suspect.path) : 0);
  }

  /** The tree for how it is read, arranged for the metric. */
  choose() {
    if (this.isInverted && this.reversed === null) this.reversed = this.upright.inverted();
    this.tree = this.isInverted ? this.reversed : this.upright;
    this.tree.arrange(this.metric);
    this.found = this.words ? this.tree.search(this.words) : null;
  }

  namesTo(node) {
    return this.tree.path(node).reverse().slice(1).map((each) => this.tree.nameOf(each));
  }

  get unit() {
    return this.data.metrics[this.metric].unit;
  }

  setMetric(metric) {
    const names = this.namesTo(this.zoom);
    this.metric = metric;
    this.choose();
    this.zoom = this.tree.find(names);
    this.refresh();
  }

  setInverted(inverted) {
    this.isInverted = inverted;
    this.zoom = this.selected = 0;
    this.hover = -1;
    this.choose();
    this.refresh();
  }

  flip() {
    this.flipped = !this.flipped;
    this.refresh();
    $('stage').scrollTop = this.flipped ? $('stage').scrollHeight : 0;
  }

  zoomTo(node) {
    this.zoom = node;
    this.selected = node;
    this.refresh();
  }

  search(words) {
    this.words = words;
    this.found = words ? this.tree.search(words) : null;
    const share = $('share');
    if (!words) share.textContent = '';
    else if (this.found === null) share.textContent = 'not a regular expression';
    else {
      const { sum, count } = this.found;
      const frames = `${count.toLocaleString('en-US')} frame${count === 1 ? '' : 's'}`;
      share.textContent = `${formatShare(sum, this.tree.total[0])} · ${formatFigure(sum, this.unit)} · ${frames}`;
    }
    this.redraw();
  }

  /** Everything: after the tree, its order, the zoom or the theme have changed. */
  refresh() {
    document.documentElement.dataset.theme = this.theme;
    const dark = this.theme === 'dark';
    this.palette = new Palette(this.tree, dark);
    const metric = this.data.metrics[this.metric];
    const total = formatFigure(this.tree.total[0], this.unit);
    $('subtitle').replaceChildren(
      element('b', `${this.data.sampled ? '~' : ''}${total}`),
      ` ${metric.name} · ${this.data.when}${this.data.elapsed && ` · ${this.data.elapsed}`}`,
    );
    [...$('metrics').children].forEach((button, at) => button.setAttribute('aria-checked', String(at === this.metric)));
    for (const button of $('colours').children) {
      button.setAttribute('role', 'radio');
      button.setAttribute('aria-checked', String(button.dataset.colours === this.colours));
    }
    $('invert').setAttribute('aria-pressed', String(this.isInverted));
    $('flip').setAttribute('aria-pressed', String(this.flipped));
    this.showCrumbs();
    this.showLegend();
    this.search(this.words);
    this.showPanel();
  }

  redraw(width = 0, scale = 0) {
    const style = getComputedStyle(document.documentElement);
    const dark = this.theme === 'dark';
    const stage = $('stage');
    this.picture.draw({
      tree: this.tree,
      zoom: this.zoom,
      width: width || Math.max(60, stage.clientWidth - 16),
      colour: (node) => (this.colours === 'growth' ? this.palette.byGrowth(node) : this.palette.byModule(node)),
      hits: this.found ? this.found.hits : null,
      selected: this.hover >= 0 ? this.hover : this.selected,
      flipped: this.flipped,
      scale: scale || Math.max(1, window.devicePixelRatio || 1),
      ink: {
        text: dark ? '#eceff2' : '#1d2126',
        hit: style.getPropertyValue('--hit').trim(),
        hitText: dark ? '#1d0616' : '#ffffff',
        rest: dark ? '#4a525c' : '#b8bec6',
      },
    });
    const name = this.tree.nameOf(this.zoom);
    $('canvas').setAttribute('aria-label', `flame graph of ${this.tree.size} frames, zoomed to ${name}`);
  }

  showCrumbs() {
    const path = this.tree.path(this.zoom).reverse();
    const parts = [];
    path.forEach((node, at) => {
      if (at) parts.push(element('i', '›'));
      const button = element('button', at ? this.tree.nameOf(node) : 'all');
      button.type = 'button';
      button.title = this.tree.nameOf(node);
      button.addEventListener('click', () => this.zoomTo(node));
      parts.push(button);
    });
    $('crumbs').replaceChildren(...parts);
  }

  showLegend() {
    const { palette, tree } = this;
    const parts = [];
    const entry = (colour, text, kind = '') => {
      const mark = element('i', '');
      mark.style.background = colour;
      mark.className = kind;
      const span = element('span', '');
      span.append(mark, text);
      parts.push(span);
    };
    if (this.colours === 'growth') {
      const stops = [-1, -0.25, 0, 0.25, 1].map((ratio) => palette.growthColour(ratio)).join(',');
      const most = formatFigure(palette.most, this.data.growthUnit);
      entry(`linear-gradient(90deg,${stops})`, `from −${most} to +${most}`, 'scale');
    } else {
      for (const module of palette.ranked.slice(0, 10)) {
        const hue = palette.hue.get(module);
        if (hue === undefined) continue;
        entry(`hsl(${hue} ${palette.dark ? '42% 34%' : '74% 74%'})`, baseName(tree.data.modules[module]));
      }
      entry(palette.dark ? 'hsl(220 6% 29%)' : 'hsl(220 6% 81%)', 'C library and others');
    }
    $('legend').replaceChildren(...parts);
  }

  /** The frame under the mouse, or the selected one, with its whole stack. */
  showPanel() {
    const { tree } = this;
    const node = this.hover >= 0 ? this.hover : this.selected;
    $('name').textContent = node ? tree.nameOf(node) : `all of ${this.data.title}`;
    const module = tree.moduleOf(node);
    $('where').textContent = [tree.placeOf(node), baseName(module)].filter(Boolean).join(' in ');
    $('where').title = module;
    const rows = this.data.metrics.map((metric, at) => {
      const value = tree.totals[at][node];
      return this.figureRow(metric.name, formatFigure(value, metric.unit), formatShare(value, tree.totals[at][0]), at === this.metric);
    });
    if (this.data.difference || tree.growth[node] < 0) {
      const growth = tree.growth[node];
      rows.push(this.figureRow('change', `${growth > 0 ? '+' : ''}${formatFigure(growth, this.data.growthUnit)}`, '', false));
    }
    $('figures').replaceChildren(...rows);
    const path = tree.path(node).slice(0, -1);
    $('stacktitle').textContent = path.length > 1 ? (this.isInverted ? 'callees, down to the allocation' : 'called by') : '';
    $('stack').replaceChildren(...path.slice(1).map((each) => {
      const item = element('li', tree.nameOf(each));
      item.style.borderLeftColor = this.palette.byModule(each);
      const place = tree.placeOf(each);
      if (place) item.append(element('small', place));
      item.addEventListener('click', () => this.zoomTo(each));
      return item;
    }));
  }

  figureRow(name, value, share, shown) {
    const row = element('tr', '');
    row.className = shown ? 'shown' : '';
    row.append(element('td', name), element('td', value), element('td', share));
    return row;
  }

  select(node) {
    this.selected = node;
    this.hover = -1;
    this.redraw();
    this.showPanel();
    const { tree } = this;
    const value = formatFigure(tree.total[node], this.unit);
    $('spoken').textContent = `${tree.nameOf(node)}, ${value}, ${formatShare(tree.total[node], tree.total[0])}`;
    const depth = this.flipped ? this.picture.rows.length - 1 - tree.depth[node] : tree.depth[node];
    const stage = $('stage');
    const top = depth * ROW;
    if (top < stage.scrollTop) stage.scrollTop = top;
    else if (top + 2 * ROW > stage.scrollTop + stage.clientHeight) stage.scrollTop = top + 2 * ROW - stage.clientHeight;
  }

  /** Arrow keys: up and down as it looks, left and right among what is drawn in a row. */
  move(key) {
    const { tree, picture } = this;
    const inwards = (key === 'ArrowDown') !== this.flipped;
    if (key === 'ArrowLeft' || key === 'ArrowRight') {
      const row = (picture.rows[tree.depth[this.selected]] ?? []).filter((box) => !box.rest);
      const at = row.findIndex((box) => box.node === this.selected);
      const next = row[at + (key === 'ArrowRight' ? 1 : -1)];
      if (next) this.select(next.node);
    } else if (inwards) {
      const child = tree.childrenOf(this.selected)[0];
      if (child !== undefined && picture.boxOf(child)) this.select(child);
    } else if (this.selected !== 0) this.select(tree.parent[this.selected]);
  }

  /** The next frame that the search found, from the largest of each row on. */
  nextHit(step) {
    if (!this.found) return;
    const all = this.picture.rows.flat().filter((box) => !box.rest && this.found.hits[box.node]);
    if (!all.length) return;
    const at = all.findIndex((box) => box.node === this.selected);
    this.select(all[(at + step + all.length) % all.length].node);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $('keys').open) return;
    const { key } = event;
    if (event.target === $('search')) {
      if (key === 'Escape') {
        $('search').value = '';
        this.search('');
      }
      if (key === 'Escape' || key === 'Enter') $('canvas').focus({ preventScroll: true });
      return;
    }
    const onButton = event.target instanceof HTMLButtonElement;
    const actions = {
      '/': () => $('search').select(),
      n: () => this.nextHit(1),
      N: () => this.nextHit(-1),
      m: () => this.setMetric((this.metric + 1) % this.data.metrics.length),
      c: () => { this.colours = this.colours === 'growth' ? 'module' : 'growth'; this.refresh(); },
      i: () => this.setInverted(!this.isInverted),
      f: () => this.flip(),
      t: () => { this.theme = this.theme === 'dark' ? 'light' : 'dark'; this.refresh(); },
      '?': () => $('keys').showModal(),
      Escape: () => {
        if (this.words) { $('search').value = ''; this.search(''); } else this.zoomTo(0);
      },
      Backspace: () => this.zoomTo(this.tree.parent[this.zoom]),
    };
    if (key.startsWith('Arrow')) actions[key] = () => this.move(key);
    if (key === 'Enter' && !onButton) actions.Enter = () => this.zoomTo(this.selected);
    if (!Object.hasOwn(actions, key)) return;
    event.preventDefault();
    actions[key]();
  }

  listen() {
    const canvas = $('canvas');
    const under = (event) => this.picture.at(event.offsetX, event.offsetY);
    canvas.addEventListener('mousemove', (event) => {
      const node = under(event);
      if (node === this.hover) return;
      this.hover = node;
      this.redraw();
      this.showPanel();
    });
    canvas.addEventListener('mouseleave', () => { this.hover = -1; this.redraw(); this.showPanel(); });
    canvas.addEventListener('click', (event) => { const node = under(event); if (node >= 0) this.zoomTo(node); });
    document.addEventListener('keydown', (event) => this.press(event));
    $('search').addEventListener('input', () => this.search($('search').value.trim()));
    $('invert').addEventListener('click', () => this.setInverted(!this.isInverted));
    for (const [id, key] of [['flip', 'f'], ['theme', 't'], ['help', '?']]) {
      $(id).addEventListener('click', () => this.press(new KeyboardEvent('keydown', { key })));
    }
    for (const button of $('colours').children) {
      button.addEventListener('click', () => { this.colours = button.dataset.colours; this.refresh(); });
    }
    new ResizeObserver(() => this.redraw()).observe($('stage'));
    let theme = this.theme;
    window.addEventListener('beforeprint', () => {
      theme = this.theme;
      this.theme = 'light';
      this.hover = -1;
      this.refresh();
      this.redraw(1100, 2);
    });
    window.addEventListener('afterprint', () => { this.theme = theme; this.refresh(); });
    if (this.data.refresh) setInterval(() => this.update(), this.data.refresh * 1000);
  }

  /** New figures from where the page came from; the old ones stay while there are none. */
  async update() {
    if (document.hidden) return;
    try {
      const answer = await fetch('flamegraph.json', { cache: 'no-store' });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      this.load(await answer.json());
      this.refresh();
    } catch {
      $('notes').textContent = 'tracelloc no longer answers: these are its last figures';
    }
  }
}

function baseName(path) {
  return path.slice(path.lastIndexOf('/') + 1);
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

/** Large data is compressed, as base64. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return JSON.parse(await new Response(stream).text());
}

let page;
const given = $('data').textContent;
if (given.startsWith('{')) page = new Page(JSON.parse(given));
else unpacked(given).then((data) => { page = new Page(data); });
