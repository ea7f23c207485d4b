"""Answers each POST with the mood of its text, as JSON."""

import http.server
import json

import torch
from transformers import pipeline

mood = pipeline("sentiment-analysis", model="distilbert-base-uncased-finetuned-sst-2-english", device=0)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        try:
            status, answer = 200, mood(text, truncation=True)[0]
        except torch.cuda.OutOfMemoryError as error:
            # The limit of the image, not the memory of the GPU.
            status, answer = 503, {"error": str(error)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
