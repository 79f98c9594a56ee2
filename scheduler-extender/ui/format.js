// How numbers, spans of time and names are written.

const whole = new Intl.NumberFormat('en');

/** A whole number with separators: 40,000. */
export function count(number) {
  return whole.format(number);
}

/** "1 card", "8 cards". */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** Thousandths as percent. Near 100 with one decimal, so that a value just over its limit is seen to be over. */
export function percent(thousandths) {
  if (thousandths === null || thousandths === undefined) return '–';
  const value = thousandths / 10;
  const near = value > 99 && value < 101 && value !== 100;
  return `${near ? value.toFixed(1) : Math.round(value)}%`;
}

/** A fraction, 0 to 1, as percent. */
export function share(fraction) {
  return fraction === null || fraction === undefined ? '–' : percent(fraction * 1000);
}

/** A number with at most two decimals. */
export function decimal(number) {
  return String(Math.round(number * 100) / 100);
}

/** MiB as GiB, or as MiB below one GiB. */
export function memory(mib) {
  if (mib === null || mib === undefined) return '–';
  return mib < 1024 ? `${Math.round(mib)} MiB` : `${count(Math.round(mib / 102.4) / 10)} GiB`;
}

/** "10 of 22.5 GiB". */
export function memoryOf(part, all) {
  return part < 1024 ? `${memory(part)} of ${memory(all)}` : `${memory(part).replace(' GiB', '')} of ${memory(all)}`;
}

/** Seconds in the two largest units that say something: 40 s, 14 min, 2 h 5 min, 3 d 4 h. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return two(hours, 'h', minutes % 60, 'min');
  return two(Math.floor(hours / 24), 'd', hours % 24, 'h');
}

function two(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** Milliseconds since 1970 as the time of day here. */
export function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString('en-GB');
}

/** A reason without its hint to the command: the page itself explains. */
export function reasonText(reason) {
  return reason.replace(/ \(see: kubectl plimsoll explain pod\)$/, '');
}

/** A cause of `closed` in words. */
export function closedText(closed) {
  const causes = {
    isolation: 'closed: isolation cannot be enforced',
    cdi: 'closed: no CDI device for it',
    'cdi-folder': 'closed: the folder of CDI specifications cannot be written',
  };
  return causes[closed] ?? 'closed: the node reports a cause that this page does not know';
}
