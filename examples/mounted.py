"""A destination inside an existing ASGI service, here Starlette's; FastAPI mounts it in the same way.

    pip install starlette uvicorn
    uvicorn mounted:api --port 8080

Messages go to http://localhost:8080/rm/. What was received is shown at http://localhost:8080/.
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

import holdfast

app = holdfast.Destination(store="inbox")
received: list[str] = []


@app.on("urn:orders/Submit")
async def submit(message: holdfast.Message) -> None:
    received.append(message.body.text or "")


async def show(request: Request) -> JSONResponse:
    return JSONResponse({"received": received})


# The host's lifespan opens the store before the first request and closes it after the last.
api = Starlette(routes=[Route("/", show), Mount("/rm", app)], lifespan=app.lifespan)
