// llama.cpp's times on token ids, by node-llama-cpp's prebuilt build: node peer_llamacpp.mjs FOLDER, a request on standard
// input. FOLDER is where npm installed node-llama-cpp. sizes.py starts it; every line it prints is a JSON object.
import {readFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const asked = JSON.parse(readFileSync(0, "utf8"));
const module = join(resolve(process.argv[2]), "node_modules", "node-llama-cpp", "dist", "index.js");
const {getLlama} = await import(pathToFileURL(module).href);
const tell = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const since = (start) => (performance.now() - start) / 1000;

const llama = await getLlama({gpu: false, build: "never", maxThreads: asked.threads, logLevel: "error"});
let start = performance.now();
const model = await llama.loadModel({modelPath: asked.file});
tell({loaded: since(start)});
if (asked.only_load) process.exit(0);
tell({seconds: await read(), steps_ms: await writeAll()});
process.exit(0);

// Each context after what it shares with the one before. Candidates are not read.
async function read() {
    const contexts = asked.groups.map((group) => group.context);
    const longest = Math.max(...contexts.map((ids) => ids.length));
    const context = await model.createContext({contextSize: longest + 8, threads: asked.threads});
    const sequence = context.getSequence();
    await sequence.evaluateWithoutGeneratingNewTokens(contexts[0].slice(0, 8)); // weights come from the disk when first used
    await sequence.clearHistory();
    const started = performance.now();
    let before = [];
    for (const ids of contexts) {
        let kept = 0;
        while (kept < ids.length - 1 && ids[kept] === before[kept]) kept++;
        await sequence.eraseContextTokenRanges([{start: kept, end: sequence.nextTokenIndex}]);
        await sequence.evaluateWithoutGeneratingNewTokens(ids.slice(kept));
        before = ids;
    }
    const seconds = since(started);
    await context.dispose();
    return seconds;
}

async function writeAll() {
    const steps = [];
    for (const rows of asked.rows) steps.push(await write(rows));
    return steps;
}

// Milliseconds of a step that writes one token of each text, after the first token.
async function write(rows) {
    const size = asked.prompt.length + asked.new + 8;
    const context = await model.createContext({sequences: rows, contextSize: size, threads: asked.threads});
    const texts = Array.from({length: rows}, () =>
        context.getSequence().evaluate(asked.prompt, {temperature: 0, yieldEogToken: true}));
    const step = () => Promise.all(texts.map((text) => text.next()));
    await step();
    const started = performance.now();
    for (let i = 1; i < asked.new; i++) {
        const written = await step();
        if (written.some((one) => one.done)) throw new Error(`a text ended after ${i} tokens`);
    }
    const milliseconds = 1000 * since(started) / (asked.new - 1);
    await context.dispose();
    return milliseconds;
}
