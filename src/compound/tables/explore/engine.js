"use strict";
// The predictions of an exported model for one row, computed as in Python: `program.py` says what is in `spec`.
// A row is an array of control values: a number, the number of an option, or null where missing.

const MISSING_SURPRISE = 100;  // as in encoder_columns.py

class Engine {
  constructor(spec, columns, floats) {
    this.spec = spec;
    this.columns = columns;
    this.floats = floats;
    this.width = spec.shift.length;
    const network = spec.network;
    this.layers = network.layers.map((layer) => ({
      ...layer,
      members: network.members,
      maps: layer.maps.map((map) => this.tensor(map)),
      basis: this.tensor(layer.basis),
    }));
    this.noises = network.noises.map((noise) => this.tensor(noise));
    this.lastNoise = this.tensor(network.last_noise);
    this.inputScales = network.input_scales && this.tensor(network.input_scales);
    this.distances = spec.distances.map((d) => ({
      ...d, whiten: this.tensor(d.whiten), centres: this.tensor(d.centres), roots: d.roots && this.tensor(d.roots),
    }));
    const sample = spec.detector.sample;
    this.sample = sample && this.tensor(sample);
    this.sampleRows = sample ? sample.shape[0] : 0;
  }

  tensor({ at, shape }) {
    return this.floats.subarray(at, at + shape.reduce((a, b) => a * b, 1));
  }

  // Encoded and standardised, as float32 numbers; the last one is the surprise.
  encode(row) {
    const numbers = new Float64Array(this.width);
    this.columns.forEach((column, i) => {
      const out = numbers.subarray(column.at, column.at + column.width);
      numbers[this.width - 1] += column.kind === "category"
        ? encodeOption(column, row[i], out)
        : encodeNumber(column, row[i], out);
    });
    const { shift, scale, limit } = this.spec;
    return Float64Array.from(numbers, (v, i) => Math.fround(clamp((v - shift[i]) / scale[i], -limit, limit)));
  }

  predict(row) {
    const x = this.encode(row);
    const isTarget = this.spec.task === "regression";
    const far = this.farNoise(x);
    const predictive = isTarget ? this.targets(x, far) : this.classes(x, far);
    predictive.aleatoric = predictive.component + predictive.mixing;
    predictive.epistemic = predictive.posterior;
    return { ...predictive, ...this.oodScore(x, predictive.epistemic) };
  }

  // Draws of the last layer's Gaussian for each member: [{mean, std}] per draw, arrays over outputs.
  lastLayer(x) {
    const { members, draws } = this.spec.network;
    const inputs = this.networkInputs(x);
    const out = [];
    for (let m = 0; m < members; m++) {
      const own = this.inputScales ? inputs.map((v, i) => v * this.inputScales[m * inputs.length + i]) : inputs;
      const start = moments(this.layers[0], m, own);
      const member = [];
      for (let d = 0; d < draws; d++) {
        let last = start;
        for (let l = 1; l < this.layers.length; l++) {
          const width = last.mean.length;
          const noise = this.noises[l - 1].subarray((m * draws + d) * width, (m * draws + d + 1) * width);
          const h = last.mean.map((v, i) => clamp(v + last.std[i] * noise[i], 0, this.spec.clamp));
          last = moments(this.layers[l], m, h);
        }
        member.push(last);
      }
      out.push(member);
    }
    return out;
  }

  networkInputs(x) {
    const clamped = x.map((v) => clamp(v, -this.spec.clamp, this.spec.clamp));
    const encoding = this.spec.network.encoding;
    if (!encoding) return clamped;
    const kept = encoding.kept.map((j) => clamped[j] / Math.sqrt(1 + (clamped[j] / encoding.clip) ** 2));
    const bins = encoding.column.map((j, k) => clamp((clamped[j] - encoding.left[k]) * encoding.slope[k], 0, 1) - 0.5);
    return Float64Array.from([...kept, ...bins]);
  }

  targets(x, far) {
    const { likelihood, limits, y_shift: shift, y_scale: scale } = this.spec;
    const { members, draws, paired } = this.spec.network;
    const { tau, floor } = likelihood;
    const means = [], variances = [], byMember = [];
    let component = 0, integrated = 0;
    this.lastLayer(x).forEach((member, m) => {
      const raw = likelihood.integrate
        ? member.map((g) => g.mean[0])
        : member.map((g, d) => g.mean[0] + g.std[0] * this.lastNoise[m * draws + d]);
      const centre = average(raw);
      const own = raw.map((v) => centre + tau * (v - centre));
      const noise = tau * tau * likelihood.noise[m] + floor;
      const spread = member.map((g) => (likelihood.integrate ? tau * tau * g.std[0] * g.std[0] : 0));
      component += noise / members;
      integrated += average(spread) / members;
      means.push(...own);
      variances.push(...spread.map((v) => noise + v));
      byMember.push(own);
    });
    const [mixing, between] = varianceParts(byMember, paired);
    const posterior = Math.max(0, between);
    let p = { component, mixing: integrated + mixing + between - posterior, posterior, means, variances };
    p = bounded(p, limits);
    if (far !== null) p = withFarVariance(p, far, this.spec.far.params[0]);
    const square = scale * scale;
    const q = {
      component: p.component * square, mixing: p.mixing * square, posterior: p.posterior * square,
      means: p.means.map((v) => shift + scale * v), variances: p.variances.map((v) => v * square),
    };
    q.mean = average(q.means);
    q.std = Math.sqrt(q.component + q.mixing + q.posterior);
    return q;
  }

  classes(x, far) {
    const { likelihood, temperature, classes } = this.spec;
    const { draws, paired } = this.spec.network;
    const count = classes.length, last = likelihood.last_draws;
    const group = paired * last;
    const byMember = this.lastLayer(x).map((member, m) => {
      const drawn = [];
      member.forEach((g, d) => {
        for (let k = 0; k < last; k++) {
          const at = ((m * draws + d) * last + k) * count;
          drawn.push(softmax(Array.from(g.mean, (v, c) => v + g.std[c] * this.lastNoise[at + c])));
        }
      });
      return drawn;
    });
    const all = byMember.flat();
    let probs = meanRows(all);
    const total = entropy(probs);
    let component = average(all.map(entropy));
    let conditional = 0;
    for (const drawn of byMember) {
      const groups = [];
      for (let i = 0; i < drawn.length; i += group) groups.push(meanRows(drawn.slice(i, i + group)));
      conditional += groupedEntropy(groups) / byMember.length;
    }
    component = Math.min(component, total);
    let posterior = Math.min(Math.max(total - conditional, 0), total - component);
    let mixing = total - component - posterior;
    if (far !== null) {
      const weight = 1 / (1 + Math.exp(-far)), network = 1 / (1 + Math.exp(far));
      probs = probs.map((p, c) => p + weight * (this.spec.far.params[c] - p));
      component *= network;
      mixing *= network;
      posterior = Math.max(0, entropy(probs) - component - mixing);
    }
    const before = component + mixing + posterior;
    probs = softmax(probs.map((p) => Math.log(Math.max(p, 2.2250738585072014e-308)) / temperature));
    const factor = entropy(probs) / Math.max(before, 2.2250738585072014e-308);
    return { probs, component: component * factor, mixing: mixing * factor, posterior: posterior * factor };
  }

  // Bounds of the conformal interval with a coverage of spec.coverages[k].
  interval(p, k) {
    const z = this.spec.quantiles[k];
    return [quantile(p, z, 1), quantile(p, z, -1)];
  }

  // Which classes are in the conformal set: the total of all likelier ones is small enough.
  set(probs, k) {
    const most = this.spec.quantiles[k];
    const order = probs.map((_, c) => c).sort((a, b) => probs[b] - probs[a] || a - b);
    const inside = new Array(probs.length).fill(false);
    let likelier = 0;
    for (const c of order) {
      inside[c] = most === null || likelier <= most;
      likelier += probs[c];
    }
    return inside;
  }

  distance(x, number) {
    const d = this.distances[number];
    const rank = d.whiten.length / this.width;
    const u = new Float64Array(rank), lengths = new Float64Array(rank);
    let total = 0;
    for (let i = 0; i < this.width; i++) {
      const v = x[i] - d.shift[i];
      total += v * v;
      for (let j = 0; j < rank; j++) {
        const w = d.whiten[i * rank + j];
        u[j] += v * w;
        lengths[j] += w * w;
      }
    }
    let residual = 0;
    if (rank < this.width) {
      const inside = u.reduce((sum, v, j) => sum + (v * v) / lengths[j], 0);
      residual = d.residual_scale ** 2 * Math.max(0, total - inside);
    }
    const near = nearestRow(u, d.centres);
    const gap = u.map((v, j) => v - d.centres[near * rank + j]);
    if (!d.roots) return Math.sqrt(gap.reduce((sum, v) => sum + v * v, 0) + residual);
    const size = (rank * (rank + 1)) / 2, root = d.roots.subarray(near * size, (near + 1) * size);
    const product = new Float64Array(rank);
    for (let i = 0, k = 0; i < rank; i++) {
      for (let j = 0; j <= i; j++, k++) {
        product[i] += root[k] * gap[j];
        if (i !== j) product[j] += root[k] * gap[i];
      }
    }
    return Math.sqrt(product.reduce((sum, v) => sum + v * v, 0) + residual * d.residual_precision[near]);
  }

  // t of far noise, or null without any.
  farNoise(x) {
    const far = this.spec.far;
    if (!far) return null;
    const clamped = x.map((v) => clamp(v, -this.spec.clamp, this.spec.clamp));
    const d = this.distance(clamped, far.distance);
    const [d50, d99, edge] = far.quantiles, [level, kappa, cap] = far.ramp;
    const rise = (distance) => level + (kappa * (distance - d50)) / (d99 - d50);
    if (far.reach && cap === 0) { // a standard deviation that grows linearly
      const share = Math.min(Math.max(d, d50), edge) / far.reach;
      const std = Math.min(Math.exp(0.5 * rise(Math.min(d, edge))), share);
      const beyond = clamp((d - edge) / (Math.max(2.9 * d99, far.reach) - edge), 0, 1);
      return clamp(2 * Math.log(std + beyond * (1 - std)), -20, cap);
    }
    const least = Math.min(cap, far.max_rise) + 6 * Math.log(clamp((d - edge) / (2.9 * d99 - edge), 1e-6, 1));
    return Math.min(Math.max(rise(d), least, -20), cap);
  }

  oodScore(x, epistemic) {
    const detector = this.spec.detector;
    const witnesses = [null, this.distance(x, 0), epistemic];
    let neighbours = [];
    if (this.sample) {
      neighbours = this.nearestRows(x, detector.neighbours);
      witnesses[0] = average(neighbours.map((n) => n.distance));
    }
    let score = Math.max(0, (detector.surprise * x[this.width - 1]) / MISSING_SURPRISE);
    witnesses.forEach((witness, j) => {
      if (witness === null) return;
      const evidence = logP(witness, detector.values[j], detector.logs[j], detector.tail) + detector.log_weights[j];
      if (j === 0 || evidence >= detector.significant) score = Math.max(score, evidence);  // the first ranks rows
    });
    return { ood_score: score, is_ood: score > detector.threshold, neighbours };
  }

  nearestRows(x, count) {
    const best = [];
    for (let r = 0; r < this.sampleRows; r++) {
      const at = r * this.width;
      const limit = best.length < count ? Infinity : best[best.length - 1].square;
      let square = 0;
      for (let i = 0; i < this.width && square < limit; i++) square += (x[i] - this.sample[at + i]) ** 2;
      if (square >= limit) continue;
      best.push({ row: r, square });
      best.sort((a, b) => a.square - b.square);
      if (best.length > count) best.pop();
    }
    return best.map(({ row, square }) => ({ row, distance: Math.sqrt(square) }));
  }

  // The values of a training row, from the sample's numbers.
  sampleRow(r) {
    const numbers = this.sample.subarray(r * this.width, (r + 1) * this.width);
    const { shift, scale } = this.spec;
    return this.columns.map((column) => {
      const values = Array.from({ length: column.width }, (_, i) => numbers[column.at + i] * scale[column.at + i] + shift[column.at + i]);
      return column.kind === "category" ? decodeOption(column, values) : decodeNumber(column, values);
    });
  }
}

function clamp(v, low, high) {
  return Math.min(Math.max(v, low), high);
}

function average(values) {
  let sum = 0;
  for (const v of values) sum += v;
  return sum / values.length;
}

function meanRows(rows) {
  return rows[0].map((_, c) => average(rows.map((row) => row[c])));
}

function entropy(probs) {
  return -probs.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);
}

function softmax(logits) {
  const most = Math.max(...logits);
  const powers = logits.map((v) => Math.exp(v - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((v) => v / sum);
}

// A column's numbers, and its surprise.
function encodeNumber(column, value, out) {
  const number = column.number, missing = value === null;
  out[0] = missing ? number.fill : value;
  if (number.has_missing) out[1] = missing ? 1 : 0;
  if (column.parts && column.parts.length) {
    const parts = calendar(out[0], column.days);
    column.parts.forEach((part, k) => { out[1 + number.has_missing + k] = parts[part.kind]; });
  }
  if (missing) return number.has_missing ? 0 : MISSING_SURPRISE;
  const low = number.low ?? -Infinity, high = number.high ?? Infinity;
  const excess = Math.max(low - value, value - high, 0);
  const half = Math.max(0.5 * (high - low), 2.2250738585072014e-308);
  return MISSING_SURPRISE * Math.min(excess / half, 1) ** 3;
}

function encodeOption(column, value, out) {
  const option = column.options[value];
  if (option.index !== null) out[option.index] = 1;
  return option.surprise;
}

function decodeNumber(column, values) {
  const number = column.number;
  if (number.has_missing && values[1] > 0.5) return null;
  if (column.kind === "boolean" || column.integer) return Math.round(values[0]);
  const digits = clamp(6 - Math.ceil(Math.log10(number.scale)), 0, 20);  // standardised values are float32
  return Number(values[0].toFixed(digits));
}

function decodeOption(column, values) {
  const index = values.findIndex((v) => v > 0.5);
  const found = column.options.findIndex((option) => option.index === (index < 0 ? null : index));
  return found < 0 ? column.options.length - 1 : found;
}

// Numbers of the calendar of days since 1970, a Thursday; Monday is weekday 0.
function calendar(days, [first, last]) {
  days = clamp(days, first, last);
  const whole = Math.floor(days);
  const date = new Date(whole * 86400000);
  const year = date.getUTCFullYear();
  const start = yearStart(year);
  const hour = roundHalfEven(24 * (days - whole) * 1e6) / 1e6;
  const weekday = (((whole + 3) % 7) + 7) % 7;
  const turns = {
    year: (whole - start + hour / 24) / (yearStart(year + 1) - start), week: weekday / 7, day: hour / 24,
  };
  const numbers = { year, month: 1 + date.getUTCMonth(), weekday, hour };
  for (const [name, turn] of Object.entries(turns)) {
    numbers[`${name} sin`] = Math.sin(2 * Math.PI * turn);
    numbers[`${name} cos`] = Math.cos(2 * Math.PI * turn);
  }
  return numbers;
}

function yearStart(year) {
  const date = new Date(0);
  date.setUTCFullYear(year, 0, 1);  // Date.UTC takes 24 for 1924
  return date.getTime() / 86400000;
}

function roundHalfEven(v) {
  const low = Math.floor(v), rest = v - low;
  return rest === 0.5 ? low + (low % 2 !== 0) : Math.round(v);
}

// The Gaussian of a compound layer's pre-activations for inputs h of member m.
function moments(layer, m, h) {
  const r = h.length + 1, c = layer.basis.length / (r * layer.members);
  const input = new Float64Array(r);
  input.set(h);
  input[r - 1] = 1;
  let g = input;
  layer.maps.forEach((map, k) => {
    const isLast = k === layer.maps.length - 1;
    const outputs = map.length / (layer.members * g.length);
    const product = multiply(g, map.subarray(m * g.length * outputs, (m + 1) * g.length * outputs), outputs);
    if (isLast) { g = product; return; }
    const next = new Float64Array(outputs + 1);
    next.set(product.map(layer.activation === "relu" ? (v) => Math.max(v, 0) : Math.tanh));
    next[outputs] = 1;
    g = next;
  });
  const bound = layer.bound, groups = layer.groups;  // inputs of a group share entries of s and lr
  const count = groups ? groups[r - 1] + 1 : r;
  let q = 0;
  const scaled = new Float64Array(r);
  for (let i = 0; i < r; i++) {
    const k = groups ? groups[i] : i;
    q += input[i] * input[i] * Math.exp(clamp(g[count + k], -bound, bound));
    scaled[i] = g[k] * input[i];
  }
  const mean = multiply(scaled, layer.basis.subarray(m * r * c, (m + 1) * r * c), c);
  const std = mean.map((_, j) => Math.sqrt((q / layer.fan_in) * Math.exp(clamp(g[2 * count + j], -bound, bound))));
  return { mean, std };
}

// x (n) times a matrix (n, columns), rows with x = 0 left out.
function multiply(x, matrix, columns) {
  const out = new Float64Array(columns);
  for (let i = 0; i < x.length; i++) {
    const v = x[i];
    if (v === 0) continue;
    for (let j = 0, at = i * columns; j < columns; j++, at++) out[j] += v * matrix[at];
  }
  return out;
}

// Mixing and posterior variance of draws, as `variance_parts` with n_samples = 1; draws[m] of member m.
function varianceParts(draws, paired) {
  const count = draws[0].length, groups = count / paired;
  let u = 0, within = 0;
  for (const own of draws) {
    const means = [];
    for (let g = 0; g < groups; g++) {
      const part = own.slice(g * paired, (g + 1) * paired), centre = average(part);
      means.push(centre);
      within += average(part.map((v) => (v - centre) ** 2)) / (groups * draws.length);
    }
    const centre = average(means);
    if (count > paired) u += means.reduce((sum, v) => sum + (v - centre) ** 2, 0) / (groups - 1) / draws.length;
  }
  const v = paired > 1 ? u + within : u;
  const inner = u / groups;
  const means = draws.map(average), centre = average(means);
  const between = average(means.map((mean) => (mean - centre) ** 2)) - (1 - 1 / draws.length) * inner;
  return [v, between];
}

// Mean entropy of y given ψ, from the probabilities of independent draws; the jackknife of `entropy_parts`.
function groupedEntropy(groups) {
  const mean = meanRows(groups), n = groups.length;
  let out = entropy(mean);
  if (n === 1) return out;
  for (const probs of groups) {
    let divergence = 0;
    probs.forEach((p, c) => {
      const change = Math.max(-1, (mean[c] - p) / ((n - 1) * Math.max(mean[c], 1.1754943508222875e-38)));
      const product = change === -1 ? 0 : (1 + change) * Math.log1p(change);
      divergence += mean[c] * (product - change);
    });
    out += ((n - 1) * divergence) / n;
  }
  return out;
}

// `Limits.forward`
function bounded(p, limits) {
  const tiny = 1.1754943508222875e-38;
  const clamped = p.means.map((v) => clamp(v, limits.low, limits.high));
  const variances = p.variances.map((v, k) => Math.min(v + (p.means[k] - clamped[k]) ** 2, limits.total));
  const mean = average(clamped);
  const total = average(variances.map((v, k) => v + (clamped[k] - mean) ** 2));
  const shrink = Math.min(limits.total / Math.max(total, tiny), 1);
  const ratio = Math.min(limits.aleatoric / Math.max(p.component + p.mixing, tiny), 1);
  const moved = clamped.some((v, k) => v !== p.means[k]);
  if (p.component + p.mixing + p.posterior <= limits.total && ratio === 1 && !moved) return p;
  const most = Math.min(total, limits.total);
  const component = Math.min(ratio * p.component, most);
  const mixing = Math.min(ratio * p.mixing, most - component);
  return {
    component, mixing, posterior: most - component - mixing,
    means: clamped.map((v) => mean + Math.sqrt(shrink) * (v - mean)),
    variances: variances.map((v) => shrink * v),
  };
}

function withFarVariance(p, t, std) {
  const unknown = Math.exp(t), network = Math.abs(Math.expm1(t)), added = std * std * unknown;
  return {
    component: network * p.component, mixing: network * p.mixing,
    posterior: p.posterior + unknown * (p.component + p.mixing) + added,
    means: p.means, variances: p.variances.map((v) => v + added),
  };
}

// -log10 of a p-value by its table.
function logP(witness, values, logs, tail) {
  let right = values.findIndex((v) => v > witness);
  right = clamp(right < 0 ? values.length : right, 1, Math.max(1, values.length - 1));
  right = Math.min(right, values.length - 1);
  const left = Math.max(right - 1, 0), tiny = 2.2250738585072014e-308;
  const position = clamp((witness - values[left]) / Math.max(values[right] - values[left], tiny), 0, 1);
  const inside = logs[left] + position * (logs[right] - logs[left]);
  const beyond = Math.log10(Math.max(witness, tiny)) - Math.log10(Math.max(values[values.length - 1], tiny));
  return inside + tail * Math.max(0, beyond);
}

function nearestRow(u, rows) {
  let best = 0, least = Infinity;
  const rank = u.length;
  for (let r = 0; r * rank < rows.length; r++) {
    let square = 0;
    for (let j = 0; j < rank; j++) square += (u[j] - rows[r * rank + j]) ** 2;
    if (square < least) [best, least] = [r, square];
  }
  return best;
}

// The quantile of level Φ(-sign z) of a mixture, z >= 0: lower with sign 1, upper with -1, that of -y. By bisection.
function quantile(p, z, sign) {
  const level = normalCdf(-z);
  const ends = p.means.map((mean, k) => sign * mean - z * Math.sqrt(p.variances[k]));
  let low = Math.min(...ends), high = Math.max(...ends);
  for (let i = 0; i < 80 && high - low > 1e-12 * Math.abs(low + high); i++) {
    const y = 0.5 * (low + high);
    const cdf = average(p.means.map((mean, k) => normalCdf((y - sign * mean) / Math.sqrt(p.variances[k]))));
    if (cdf < level) low = y; else high = y;
  }
  return sign * 0.5 * (low + high);
}

// Φ(x) with a relative error below 1.2e-7 in the lower tail (Numerical Recipes, erfcc).
function normalCdf(x) {
  const a = Math.abs(x) / Math.SQRT2, t = 1 / (1 + 0.5 * a);
  const tail = 0.5 * t * Math.exp(-a * a - 1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 +
    t * (-0.18628806 + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277)))))))));
  return x <= 0 ? tail : 1 - tail;
}

function density(p, y) {
  return average(p.means.map((mean, k) => {
    const variance = p.variances[k];
    return Math.exp((-0.5 * (y - mean) ** 2) / variance) / Math.sqrt(2 * Math.PI * variance);
  }));
}
