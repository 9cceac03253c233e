"""SageMaker's API over HTTP, answered by the engine and by moto; `server.Api` shows what each request passes."""
