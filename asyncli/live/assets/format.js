// Numbers as a person reads them; unknown is a dash.

const UNKNOWN = '–';

export function count(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const digits = Math.abs(value) < 10 && !Number.isInteger(value) ? 2 : 0;
  return value.toLocaleString('en-US', { maximumFractionDigits: digits });
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let size = Math.abs(value);
  let place = 0;
  while (size >= 1000 && place < units.length - 1) {
    size /= 1000;
    place += 1;
  }
  const digits = size >= 100 || place === 0 ? 0 : size >= 10 ? 1 : 2;
  return `${value < 0 ? '-' : ''}${size.toFixed(digits)} ${units[place]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 100) return `${value.toFixed(0)} ms`;
  if (value >= 1) return `${value.toFixed(1)} ms`;
  return `${(value * 1000).toFixed(0)} µs`;
}

export function cores(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return `${value.toFixed(2)} cores`;
}

// Causes whose key is no word of a reader's.
const CAUSES = { generator_lost: 'with a process of asyncli\'s own' };

export function causeOf(key) {
  return CAUSES[key] || key.replaceAll('_', ' ');
}

// 1:02:03 since the run's start.
export function clock(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, '0');
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

// "2 h 5 min", "40 s".
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
}

export const OF_UNIT = { count, bytes, ms: milliseconds, cores };
