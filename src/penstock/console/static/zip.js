// Packs files into a zip archive, so that a folder is sent as one body.

const TABLE = Uint32Array.from({ length: 256 }, (_, number) => {
  for (let bit = 0; bit < 8; bit += 1) number = number & 1 ? (number >>> 1) ^ 0xedb88320 : number >>> 1;
  return number;
});
const UTF8 = 0x800;
const DEFLATED = 8;
const JANUARY_1980 = 0x21;

function checksum(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) sum = TABLE[(sum ^ byte) & 0xff] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

async function deflated(bytes) {
  const packed = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

// Numbers of two ("2") and four bytes ("4"), the lowest byte first.
function record(form, ...numbers) {
  const view = new DataView(new ArrayBuffer([...form].reduce((sum, each) => sum + Number(each), 0)));
  let at = 0;
  numbers.forEach((number, index) => {
    if (form[index] === "2") view.setUint16(at, number, true); else view.setUint32(at, number, true);
    at += Number(form[index]);
  });
  return view.buffer;
}

// `files` are pairs of a path and a file. Fails if the archive gets larger than `most` bytes.
export async function zip(files, most) {
  const parts = [], index = [];
  let at = 0, indexSize = 0;
  for (const [path, file] of files) {
    const name = new TextEncoder().encode(path);
    const content = new Uint8Array(await file.arrayBuffer());
    const packed = await deflated(content);
    const facts = [UTF8, DEFLATED, 0, JANUARY_1980, checksum(content), packed.length, content.length, name.length, 0];
    parts.push(record("42222244422", 0x04034b50, 20, ...facts), name, packed);
    index.push(record("42222224442222244", 0x02014b50, 20, 20, ...facts, 0, 0, 0, 0, at), name);
    at += 30 + name.length + packed.length;
    indexSize += 46 + name.length;
    if (at + indexSize > most) throw new Error(tooLarge(most));
  }
  return new Blob([...parts, ...index, record("42222442", 0x06054b50, 0, 0, files.length, files.length, indexSize, at, 0)], { type: "application/zip" });
}

export function tooLarge(most) {
  return `the archive is larger than ${most >> 20} MiB: leave out what is not needed`;
}
